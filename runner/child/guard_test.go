package child_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/child"
)

// TestGuardKeepsTheSocket: the guard's duplicate keeps the connection open. The guard notices by
// itself that the peer closes the connection, kills the tree for that, and then ends its own side,
// too.
func TestGuardKeepsTheSocket(t *testing.T) {
	here, there := socketPair(t)
	c, pids := startTreeWith(t, here, child.Spec{}, 3)
	if err := here.Close(); err != nil {
		t.Fatal(err)
	}
	if err := there.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read after this process closed its end: %v; the guard should hold it open", err)
	}
	if err := there.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.SocketClosed {
		t.Errorf("%+v, want SocketClosed", r)
	}
	if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the tree's death: %v, want the end of the stream", err)
	}
}

// TestSharedSocket: when the deadline has passed, a guard that shares its socket with others leaves
// the connection to a pglead that has heard of that, and releases nothing by it. One that doesn't
// ends it.
func TestSharedSocket(t *testing.T) {
	for name, shares := range map[string]bool{"alone": false, "shared": true} {
		t.Run(name, func(t *testing.T) {
			here, there := socketPair(t)
			c := startRoleWith(t, here, child.Spec{
				Deadline: boottime.Now().Add(3 * time.Second), SharesSocket: shares, SocketLinger: time.Hour,
				Release: []byte("bye"), ReleaseEndsSession: !shares,
			}, "sleep", t.TempDir())
			if r := await(t, c); r.Ending != child.LeaseOver {
				t.Errorf("%+v, want LeaseOver", r)
			}
			pid := child.GuardPID(c)
			for began := time.Now(); unix.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
				if time.Since(began) > patience {
					t.Fatal("the guard never ends")
				}
			}
			if err := there.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			want := "bye"
			if shares {
				want = ""
			}
			if said, err := io.ReadAll(there); errors.Is(err, os.ErrDeadlineExceeded) != shares || string(said) != want {
				t.Errorf("the guard says %q, and then %v", said, err)
			}
		})
	}
}

func socketPair(t *testing.T) (here *net.TCPConn, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	there, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	return here, there
}

// TestDeepTree: a chain of processes is killed as quickly as its few first ones, by the guard or in
// its place: it isn't taken for one that SIGKILL doesn't reach.
func TestDeepTree(t *testing.T) {
	const depth = 150
	const chain = `[ "$1" = 0 ] || sh -c "$2" sh $(($1 - 1)) "$2" "$3" & : >"$3/$$"; wait; exec sleep 1000`
	for name, kill := range map[string]func(*child.Child){
		"by the guard": (*child.Child).Kill,
		"in its place": func(c *child.Child) { _ = unix.Kill(child.GuardPID(c), unix.SIGKILL) },
	} {
		t.Run(name, func(t *testing.T) {
			parent, err := child.NewParent(nil)
			if err != nil {
				t.Fatal(err)
			}
			child.GiveNoGroups(parent) // which kill all at one stroke
			guard, err := parent.StartGuard(nil)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			c, err := guard.StartCommand(t.Context(), child.Spec{
				Path: "/bin/sh", Args: []string{"sh", "-c", chain, "sh", strconv.Itoa(depth), chain, dir},
				Env: []string{"PATH=" + os.Getenv("PATH")}, Deadline: far(), GuardPatience: time.Minute,
			})
			if err != nil {
				t.Fatal(err)
			}
			pids := awaitRecords(dir, depth+1)
			kill(c)
			r := await(t, c)
			assertDead(t, pids)
			if int(r.Killed) < depth || len(c.Events()) > 0 {
				t.Errorf("%+v, want at least %d killed; events: %d", r, depth, len(c.Events()))
			}
		})
	}
}

// TestGuardKilled: this process inherits the tree and ends it, and leaves alone what it had started
// before.
func TestGuardKilled(t *testing.T) {
	bystander := exec.Command("sleep", "3600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	c, pids := startTree(t, child.Spec{}, 5)
	if err := unix.Kill(child.GuardPID(c), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.GuardDied || int(r.Killed) < len(pids) {
		t.Errorf("%+v, want GuardDied, and at least %d killed", r, len(pids))
	}
	if err := unix.Kill(bystander.Process.Pid, 0); err != nil {
		t.Errorf("the bystander: %v", err)
	}
}

// TestStoppedGuard: if the guard is stopped, this process ends the tree in its place.
func TestStoppedGuard(t *testing.T) {
	for name, end := range map[string]func(*child.Child){
		"the loss": (*child.Child).TellLost, "an order": (*child.Child).Kill, "the loss, near the end of the lease": (*child.Child).TellLost,
	} {
		t.Run(name, func(t *testing.T) {
			spec := child.Spec{}
			if strings.Contains(name, "lease") { // which ends the grace
				spec.LostGrace, spec.Deadline = time.Hour, boottime.Now().Add(5*time.Second)
			}
			c, pids := startTree(t, spec, 5)
			guard := child.GuardPID(c)
			if err := unix.Kill(guard, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if t.Failed() { // otherwise the cleanup would wait for the guard for ever
					_ = unix.Kill(guard, unix.SIGCONT)
				}
			}()
			end(c)
			r := await(t, c)
			assertDead(t, pids)
			if r.Ending != child.GuardLate {
				t.Errorf("%+v, want GuardLate", r)
			}
		})
	}
}

// TestUnusedGuard: nothing is left of a guard that was started ahead of time and is closed.
func TestUnusedGuard(t *testing.T) {
	here, there := socketPair(t)
	g := newGuard(t, here)
	_ = here.Close()
	g.Close()
	if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the guard's end: %v, want the end of the stream", err)
	}
}

// TestGuardGone: ErrNotStarted, for a guard that died before it had read its request, means that
// nothing has run. Half of the requests are so large that the death can come while they are
// written; the others wait in the socket of a guard that is stopped.
func TestGuardGone(t *testing.T) {
	gone := [2]int{}
	for try := range 40 {
		g, mark := newGuard(t, nil), filepath.Join(t.TempDir(), "ran")
		pid, small := child.UnusedPID(g), try%2
		if small == 1 {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		killer := time.AfterFunc(time.Duration(try/2)*500*time.Microsecond, func() { _ = unix.Kill(pid, unix.SIGKILL) })
		c, err := g.StartCommand(t.Context(), child.Spec{
			Path: "/bin/touch", Args: []string{"touch", mark}, Deadline: far(),
			Env: slices.Repeat([]string{strings.Repeat("x", 100_000)}, 10-9*small),
		})
		if err == nil {
			<-c.Done()
		}
		killer.Stop()
		if died := (*child.GuardError)(nil); err != nil && !errors.As(err, &died) {
			t.Errorf("the guard was killed, and the error is %v", err)
		}
		if !errors.Is(err, child.ErrNotStarted) {
			continue
		}
		gone[small]++
		if _, err := os.Stat(mark); err == nil {
			t.Fatal("the guard was gone before the start, and the command ran")
		}
	}
	t.Logf("%v of 20 were gone before", gone)
	if gone[0] == 0 || gone[1] != 20 {
		t.Errorf("%v guards were gone before they had their request", gone)
	}
}

// TestUnstoppedGuard: SIGTSTP to the group doesn't stop a guard that waits for its request, and a
// guard that SIGSTOP has stopped can be closed.
func TestUnstoppedGuard(t *testing.T) {
	g := newGuard(t, nil)
	pid := child.UnusedPID(g)
	ignores := func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, mask, _ := strings.Cut(string(status), "\nSigIgn:")
		var ignored uint64
		_, _ = fmt.Sscanf(mask, "%x", &ignored)
		return ignored&(1<<(unix.SIGTSTP-1)) != 0
	}
	for began := time.Now(); !ignores(); time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("the guard can be stopped")
		}
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.Close()
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the guard is still there: %v", err)
	}
}

func TestExamine(t *testing.T) {
	names := map[string]checkup.Status{}
	for _, c := range child.Examine() {
		names[c.Name] = c.Status
		t.Logf("%-4s  %-10s  %s -> %s", c.Status, c.Name, c.Seen, c.Advice)
		if c.Status == checkup.Fail {
			t.Errorf("%s fails", c.Name)
		}
	}
	if names["guard"] != checkup.OK && runtime.GOOS == "linux" {
		t.Error("the guard was not tried")
	}
}

// TestExamineBusy: with many trials at once, each guard's report of what its command has left
// behind arrives.
func TestExamineBusy(t *testing.T) {
	const atOnce = 60 // of ten such trials one failed while the guard wrote with a deadline
	found := make(chan []checkup.Check)
	for range atOnce {
		go func() { found <- child.Examine() }()
	}
	for range atOnce {
		for _, c := range <-found {
			if c.Name == "guard" && c.Status != checkup.OK {
				t.Error(c)
			}
		}
	}
}
