package child_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
)

// usedGuard returns a guard that has had a command and can have another one. during, unless nil, is
// called while the command runs. On a busy machine it may take several guards to get one.
func usedGuard(t *testing.T, socket syscall.Conn, spec child.Spec, during func(*child.Child)) *child.Guard {
	t.Helper()
	if tty, err := os.Open("/dev/tty"); err == nil {
		_ = tty.Close()
		t.Skip("NOT TESTED: the reuse of a guard: with a terminal each command has a guard of its own")
	}
	if spec.Path == "" {
		spec.Path, spec.Args = "/bin/true", []string{"true"}
	}
	spec.Deadline, spec.KeepGuard = far(), true
	for began := time.Now(); time.Since(began) < patience; {
		g := newGuard(t, socket)
		c, err := g.StartCommand(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if during != nil {
			during(c)
		}
		r := await(t, c)
		if r.Ending != child.Exited || r.Killed != 0 {
			t.Fatalf("%+v", r)
		}
		if g.Idle() {
			return g
		}
	}
	t.Fatal("no guard can have a second command")
	return nil
}

// startAgain starts a command under a guard that has had one before.
func startAgain(t *testing.T, g *child.Guard, spec child.Spec, role string, args ...string) *child.Child {
	t.Helper()
	guard := child.UnusedPID(g)
	spec = roleSpec(spec, role, args...)
	spec.KeepGuard = true
	c, err := g.StartCommand(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Kill()
		<-c.Done()
		if g.Idle() {
			g.Close()
		}
	})
	if child.GuardPID(c) != guard {
		t.Fatalf("guard %d, not %d", child.GuardPID(c), guard)
	}
	return c
}

// TestStoppedBetweenCommands: a guard that was stopped after a command is woken for the next.
func TestStoppedBetweenCommands(t *testing.T) {
	g := usedGuard(t, nil, child.Spec{}, nil)
	if err := unix.Kill(child.UnusedPID(g), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if r := await(t, startAgain(t, g, child.Spec{}, "exit", "7")); r.Status.ExitStatus() != 7 {
		t.Errorf("%+v", r)
	}
}

// TestReusedGuardLeavesNoTrace: what a command finds does not depend on whether its guard has had
// another command before. The earlier command has done what it can to leave something behind.
func TestReusedGuardLeavesNoTrace(t *testing.T) {
	const look = `exec 9>&-; {
		env | sort; umask; ulimit -a; pwd
		ls -l /proc/self/fd | sed 's/.* \([0-9]* ->\)/\1/; s/pipe:.*/pipe/'
		grep -E '^(Sig[PBIC]|Shd|NoNewPrivs|Seccomp:|CapEff)' /proc/self/status
		read -r pid name state parent group session tty foreground rest </proc/$$/stat
		echo group $((group - pid)) session $((session - parent)) tty $tty $foreground
		cat /proc/self/oom_score_adj; test -e /proc/$$/cgroup && sed 's/pglead-[0-9a-f]*/pglead/' /proc/$$/cgroup; } >"$0"; test "$1" = once || exit 0
		umask 077; ulimit -n 50; cd /; trap '' TERM HUP USR1; export LEFT=1; kill -STOP 0 & kill %1`
	dir := t.TempDir()
	looks := func(g *child.Guard, name string) string {
		file := filepath.Join(dir, name)
		c, err := g.StartCommand(t.Context(), child.Spec{
			Path: "/bin/sh", Args: []string{"sh", "-c", look, file}, Env: []string{"PATH=" + os.Getenv("PATH"), "ALONE=1"},
			Deadline: far(), KeepGuard: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		await(t, c)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if g.Idle() {
			g.Close()
		}
		return regexp.MustCompile(`/proc/\d+/`).ReplaceAllString(string(text), "/proc/N/")
	}
	first := looks(newGuard(t, nil), "first")
	second := looks(usedGuard(t, nil, child.Spec{
		Path: "/bin/sh", Env: []string{"LEFT=1"},
		Args: []string{"sh", "-c", "umask 077; ulimit -n 50; cd /; trap '' TERM HUP USR1; exec 9>/dev/null; export LEFT=1"},
	}, nil), "second")
	if first != second {
		t.Errorf("the first command found\n%s\nthe second\n%s", first, second)
	}
	if !strings.Contains(first, "group 0 session 0 tty 0") {
		t.Errorf("it has no group of its own in the guard's session: %s", first)
	}
}

// TestCommandHasItsSlack: the guard's timer slack is not the command's.
func TestCommandHasItsSlack(t *testing.T) {
	want, err := os.ReadFile("/proc/self/timerslack_ns")
	if err != nil {
		t.Skip("NOT TESTED: the slack, which takes Linux 4.6: ", err)
	}
	file := filepath.Join(t.TempDir(), "slack")
	g := newGuard(t, nil)
	c, err := g.StartCommand(t.Context(), child.Spec{
		Path: "/bin/sh", Args: []string{"sh", "-c", `cat /proc/self/timerslack_ns >"$0"`, file}, Env: []string{"PATH=" + os.Getenv("PATH")}, Deadline: far(),
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, c)
	if got, err := os.ReadFile(file); err != nil || string(got) != string(want) {
		t.Errorf("the command's is %q, this process's %q, %v", got, want, err)
	}
}

// TestUnusualEndsTheGuard: a guard ends after a command with which anything unusual happened.
func TestUnusualEndsTheGuard(t *testing.T) {
	for name, script := range map[string]string{
		"a signal's death": "kill -KILL $$",
		"leftovers":        "sleep 1000 & exit 0",
		"a long command":   "sleep 0.1",
		"an order":         "trap 'exit 0' USR1; while :; do :; done",
	} {
		g := usedGuard(t, nil, child.Spec{}, nil)
		guard := child.UnusedPID(g)
		dir := t.TempDir()
		c, err := g.StartCommand(t.Context(), child.Spec{
			Path: "/bin/sh", Args: []string{"sh", "-c", "touch " + dir + "/1; " + script},
			Deadline: far(), KeepGuard: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		if name == "an order" {
			awaitRecords(dir, 1)
			time.AfterFunc(patience, c.Kill)
			for done := false; !done; {
				c.Signal(unix.SIGUSR1)
				select {
				case <-c.Done():
					done = true
				case <-time.After(time.Millisecond):
				}
			}
		}
		await(t, c)
		if g.Idle() {
			t.Errorf("%s: the guard is to have another command", name)
		}
		for began := time.Now(); unix.Kill(guard, 0) != unix.ESRCH; time.Sleep(time.Millisecond) {
			if time.Since(began) > patience {
				t.Fatalf("%s: the guard is still there", name)
			}
		}
	}
}

// TestOrdersAreNotForTheNext: an order for a dead command does not reach the next command of its
// guard.
func TestOrdersAreNotForTheNext(t *testing.T) {
	var old *child.Child
	g := usedGuard(t, nil, child.Spec{}, func(c *child.Child) {
		old = c
		c.Renew(boottime.Now().Add(3 * time.Hour))
	})
	deadline := boottime.Now().Add(2 * time.Second)
	dir := t.TempDir()
	c := startAgain(t, g, child.Spec{Deadline: deadline}, "deaf", dir)
	old.Kill()
	old.TellLost()
	old.Signal(unix.SIGKILL)
	old.Renew(boottime.Now().Add(4 * time.Hour)) // later than its last one, which would otherwise be kept back
	pids := awaitRecords(dir, 1)
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.LeaseOver || boottime.Now() < deadline {
		t.Errorf("%+v, %v after the deadline", r, boottime.Now().Sub(deadline))
	}
}

// TestReusedGuardKills: the second command is killed as the first would be, with all that it
// started, for whatever reason.
func TestReusedGuardKills(t *testing.T) {
	const breadth = 5
	for name, kill := range map[string]func(*child.Child) child.Ending{
		"an order": func(c *child.Child) child.Ending { c.Kill(); return child.ByOrder },
		"the loss": func(c *child.Child) child.Ending { c.TellLost(); return child.ByOrder },
		"the guard": func(c *child.Child) child.Ending {
			_ = unix.Kill(child.GuardPID(c), unix.SIGKILL)
			return child.GuardDied
		},
		"guard stop": func(c *child.Child) child.Ending {
			_ = unix.Kill(child.GuardPID(c), unix.SIGSTOP)
			c.TellLost()
			return child.GuardLate
		},
	} {
		dir := t.TempDir()
		g := usedGuard(t, nil, child.Spec{}, nil)
		c := startAgain(t, g, child.Spec{}, "tree", dir, fmt.Sprint(breadth))
		pids := awaitRecords(dir, treeSize(breadth))
		ending := kill(c)
		r := await(t, c)
		assertDead(t, pids)
		if r.Ending != ending || g.Idle() {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestReusedGuardSeesEnd: under the second command, too, the guard sees the server's end.
func TestReusedGuardSeesEnd(t *testing.T) {
	here, there := socketPair(t)
	dir := t.TempDir()
	c := startAgain(t, usedGuard(t, here, child.Spec{}, nil), child.Spec{}, "tree", dir, "3")
	pids := awaitRecords(dir, treeSize(3))
	if err := there.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.SocketClosed {
		t.Errorf("%+v, want SocketClosed", r)
	}
}

// TestSocketClosedBeforeStart: a guard that comes to its request late, since it was
// stopped for instance, starts nothing once the server has ended the session.
func TestSocketClosedBeforeStart(t *testing.T) {
	for name, guard := range map[string]func(socket syscall.Conn) *child.Guard{
		"first":  func(socket syscall.Conn) *child.Guard { return newGuard(t, socket) },
		"second": func(socket syscall.Conn) *child.Guard { return usedGuard(t, socket, child.Spec{}, nil) },
	} {
		here, there := socketPair(t)
		g := guard(here)
		if err := there.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "started")
		c, err := g.StartCommand(t.Context(), child.Spec{Path: "/bin/touch", Args: []string{"touch", file}, Deadline: far()})
		if !errors.Is(err, child.ErrLeaseOver) {
			t.Errorf("%s: %v, want ErrLeaseOver", name, err)
		}
		if err == nil {
			await(t, c)
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%s: the command was started", name)
		}
	}
}

// TestReusedGuardReleases: when this process is gone, the guard writes the release of the
// command that runs, and nothing if none does.
func TestReusedGuardReleases(t *testing.T) {
	for _, release := range []string{"the second's", ""} {
		here, there := socketPair(t)
		g := usedGuard(t, here, child.Spec{Release: []byte("the first's"), ReleaseEndsSession: true}, nil)
		if release == "" {
			g.Close()
		} else {
			dir := t.TempDir()
			c := startAgain(t, g, child.Spec{Release: []byte(release), ReleaseEndsSession: true}, "deaf", dir)
			awaitRecords(dir, 1)
			child.HangUp(c)
			await(t, c)
		}
		_ = here.Close()
		if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(there)
		if err != nil || string(got) != release {
			t.Errorf("the guard says %q, %v; want %q", got, err, release)
		}
		_ = there.Close()
	}
}

// TestAgainUntold: when this process is gone before it has read that the command is dead, the guard
// writes the release, also if the command was so brief that the guard could have another one.
func TestAgainUntold(t *testing.T) {
	for range 10 { // on a busy machine not every command is brief
		releasesFor(t, child.Spec{KeepGuard: true}, child.VanishUntold)
	}
}

// TestVanishStarting: when this process is gone before it has read that the command has started,
// the guard kills the command, and writes the release.
func TestVanishStarting(t *testing.T) { releasesFor(t, child.Spec{}, child.VanishStarting) }

// releasesFor fails unless the guard of `true` writes the release for this process, which vanishes.
func releasesFor(t *testing.T, spec child.Spec, vanish func(*child.Guard, child.Spec) error) {
	t.Helper()
	here, there := socketPair(t)
	spec.Release, spec.ReleaseEndsSession = []byte("bye"), true
	spec = roleSpec(spec, "exit", "0")
	spec.Path, spec.Args = "/bin/true", []string{"true"}
	if err := vanish(newGuard(t, here), spec); err != nil {
		t.Fatal(err)
	}
	_ = here.Close()
	if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(there); err != nil || string(said) != "bye" {
		t.Errorf("the guard says %q, %v", said, err)
	}
}

// TestManyRenewals: the deadlines that brief commands leave in the pipe do not keep those of a long
// command after them out of it.
func TestManyRenewals(t *testing.T) {
	g := usedGuard(t, nil, child.Spec{}, nil)
	for n := range 20 {
		c := startAgain(t, g, child.Spec{}, "exit", "0")
		for i := range 1000 {
			c.Renew(far().Add(time.Duration(n*1000+i) * time.Second))
		}
		await(t, c)
		if !g.Idle() {
			g = usedGuard(t, nil, child.Spec{}, nil)
		}
	}
	deadline := boottime.Now().Add(time.Second)
	dir := t.TempDir()
	c := startAgain(t, g, child.Spec{Deadline: deadline}, "catch", dir)
	c.Renew(far())
	awaitRecords(dir, 1)
	for boottime.Now() < deadline.Add(100*time.Millisecond) {
		time.Sleep(boottime.Until(deadline.Add(110 * time.Millisecond)))
	}
	c.Signal(unix.SIGTERM)
	if r := await(t, c); r.Status.ExitStatus() != int(unix.SIGTERM) {
		t.Errorf("%+v, want the status after SIGTERM: the new deadline was not heard", r)
	}
}
