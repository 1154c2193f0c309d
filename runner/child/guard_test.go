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
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestSocket: the guard's duplicate keeps the connection open. The guard notices by itself that the
// peer closes the connection, kills the tree for that, and then ends its own side, too.
func TestSocket(t *testing.T) {
	here, there := socketPair(t)
	c, pids := startTreeWith(t, here, child.Config{}, 3)
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
			c := startRoleWith(t, here, child.Config{
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
	c, pids := startTree(t, child.Config{}, 5)
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
			cfg := child.Config{}
			if strings.Contains(name, "lease") { // which ends the grace
				cfg.LostGrace, cfg.Deadline = time.Hour, boottime.Now().Add(5*time.Second)
			}
			c, pids := startTree(t, cfg, 5)
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

// TestFullSocket: orders for which there is no room wait until the guard takes them.
func TestFullSocket(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Config{}, "catch", dir)
	awaitRecords(dir, 1)
	guard := child.GuardPID(c)
	if err := unix.Kill(guard, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 10_000 { // more than a socket takes
		c.Signal(unix.SIGWINCH)
	}
	c.Signal(unix.SIGTERM)
	if err := unix.Kill(guard, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if r := await(t, c); r.Status.ExitStatus() != int(unix.SIGTERM) {
		t.Errorf("%+v, want the status after SIGTERM", r)
	}
}

// TestFullPipe: more deadlines than the guard has room for hold nobody up.
func TestFullPipe(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Config{}, "sleep", dir)
	awaitRecords(dir, 1)
	defer time.AfterFunc(patience, func() {
		t.Error("it is held up")
		_ = unix.Kill(child.GuardPID(c), unix.SIGKILL)
	}).Stop()
	for i := range 10_000 {
		c.Renew(far().Add(time.Duration(i) * time.Second))
	}
}

// TestGuardRests: while a command has its grace after the end of the connection, the guard waits, and
// takes no processor.
func TestGuardRests(t *testing.T) {
	here, there := socketPair(t)
	c, told := startReluctant(t, here, child.Config{LostGrace: time.Hour, MostGrace: time.Hour})
	if err := there.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	testserver.Eventually(t, "the command is told", told)
	ticks := func() (used int) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child.GuardPID(c)))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		for _, field := range strings.Fields(rest)[11:13] { // utime and stime, in 1/100 s (proc(5))
			n, _ := strconv.Atoi(field)
			used += n
		}
		return used
	}
	before := ticks()
	time.Sleep(time.Second)
	if used := ticks() - before; used > 10 {
		t.Errorf("it takes %d ms of processor time in a second", 10*used)
	}
}

// TestApart: no signal for this process's group or session reaches the guard of a command that runs.
func TestApart(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Config{}, "sleep", dir)
	awaitRecords(dir, 1)
	guard := child.GuardPID(c)
	session, err := unix.Getsid(guard)
	if err != nil || session != guard {
		t.Errorf("the guard %d is in session %d, %v", guard, session, err)
	}
}

// TestNothingIsInherited: a command has the descriptors that it would have without a guard.
func TestNothingIsInherited(t *testing.T) {
	const list = `ls /proc/self/fd >"$0"`
	file := filepath.Join(t.TempDir(), "fds")
	look := func() string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if err := exec.Command("/bin/sh", "-c", list, file).Run(); err != nil {
		t.Fatal(err)
	}
	want := look()
	here, _ := socketPair(t)
	c, err := newGuard(t, here).StartCommand(t.Context(), child.Config{
		Path: "/bin/sh", Args: []string{"sh", "-c", list, file}, Env: []string{"PATH=" + os.Getenv("PATH")}, Deadline: far(),
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, c)
	if got := look(); got != want {
		t.Errorf("with a guard it has\n%s\nand without\n%s", got, want)
	}
}

// TestNothingIsLeft: of guards that have ended this process keeps no descriptor, and no number, which
// another process may get.
func TestNothingIsLeft(t *testing.T) {
	guards, err := child.NewGuards(nil)
	if err != nil {
		t.Fatal(err)
	}
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	run := func(end func(*child.Guard)) {
		here, there := socketPair(t)
		defer func() { _, _ = here.Close(), there.Close() }()
		g, err := guards.Start(here)
		if err != nil {
			t.Fatal(err)
		}
		end(g)
	}
	start := func(g *child.Guard) *child.Child {
		c, err := g.StartCommand(t.Context(), child.Config{Path: "/bin/sleep", Args: []string{"sleep", "3600"}, Deadline: far()})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ends := []func(*child.Guard){
		(*child.Guard).Close,
		func(g *child.Guard) { c := start(g); c.Kill(); await(t, c) },
		func(g *child.Guard) { c := start(g); _ = unix.Kill(child.GuardPID(c), unix.SIGKILL); await(t, c) },
	}
	run(ends[0]) // the first makes Go's poller open its own
	before := open()
	for _, end := range ends {
		run(end)
	}
	testserver.Eventually(t, "no guard is left", func() bool { return len(child.Listed(guards)) == 0 })
	if after := open(); after > before {
		t.Errorf("%d descriptors are open, and %d were before", after, before)
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
// nothing has run. Half of the requests are so large that the death can come while they are written;
// the others wait in the socket of a guard that is stopped.
func TestGuardGone(t *testing.T) {
	gone := [2]int{}
	for try := range 40 {
		g, mark := newGuard(t, nil), filepath.Join(t.TempDir(), "ran")
		pid, small := child.UnusedPID(g), try%2
		if small == 1 {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		killer := time.AfterFunc(time.Duration(try/2)*500*time.Microsecond, func() { _ = unix.Kill(pid, unix.SIGKILL) })
		c, err := g.StartCommand(t.Context(), child.Config{
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
