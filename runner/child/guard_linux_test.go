package child_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestFullSocket: orders for which there is no room wait until the guard takes them.
func TestFullSocket(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Spec{}, "catch", dir)
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
	c := startRole(t, child.Spec{}, "sleep", dir)
	awaitRecords(dir, 1)
	defer time.AfterFunc(patience, func() {
		t.Error("it is held up")
		_ = unix.Kill(child.GuardPID(c), unix.SIGKILL)
	}).Stop()
	for i := range 10_000 {
		c.Renew(far().Add(time.Duration(i) * time.Second))
	}
}

// TestGuardRests: while a command has its grace after the end of the connection, the guard waits,
// and takes no processor.
func TestGuardRests(t *testing.T) {
	here, there := socketPair(t)
	c, told := startReluctant(t, here, child.Spec{LostGrace: time.Hour, MostGrace: time.Hour})
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

// TestSignalsMissTheGuard: no signal for this process's group or session reaches the guard of a
// command that runs.
func TestSignalsMissTheGuard(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Spec{}, "sleep", dir)
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
	c, err := newGuard(t, here).StartCommand(t.Context(), child.Spec{
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

// TestNothingIsLeft: of guards that have ended this process keeps no descriptor, and no number,
// which another process may get.
func TestNothingIsLeft(t *testing.T) {
	parent, err := child.NewParent(nil)
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
		g, err := parent.StartGuard(here)
		if err != nil {
			t.Fatal(err)
		}
		end(g)
	}
	start := func(g *child.Guard) *child.Child {
		c, err := g.StartCommand(t.Context(), child.Spec{Path: "/bin/sleep", Args: []string{"sleep", "3600"}, Deadline: far()})
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
	testserver.Eventually(t, "no guard is left", func() bool { return len(child.Listed(parent)) == 0 })
	if after := open(); after > before {
		t.Errorf("%d descriptors are open, and %d were before", after, before)
	}
}
