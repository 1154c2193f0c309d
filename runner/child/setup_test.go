package child_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// index says where to look for a test, by the beginnings of the files' names.
const index = `
command, lookup                      a command as it is found and started, its environment, signals and exit status
kill, kill_linux, cgroup_linux       the end of the tree: kills, also without descriptors, the grace, leftovers, control groups
pglead_gone_linux                    pglead is killed, or stopped
release_linux                        what a guard whose pglead is gone says to the server
guard, guard_linux                   the socket, a guard that is killed or stopped, and what doctor examines
reuse_linux                          one guard for many commands
wire, guardprocess_tell, tree_linux  what pglead and the guard say to each other, and of processes
setup, export                        for all tests
`

func TestIndex(t *testing.T) { testserver.Index(t, index, ".") }

// TestMain lets the test binary be the misbehaving commands.
func TestMain(m *testing.M) {
	if role := os.Getenv("CHILD_TEST_ROLE"); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// play is what the commands under test do.
func play(role string, args []string) int {
	switch role {
	case "exit":
		status, _ := strconv.Atoi(args[0])
		return status
	case "die":
		sig, _ := strconv.Atoi(args[0])
		child.DieOf(unix.Signal(sig))
	case "environ":
		_ = os.WriteFile(args[0], []byte(strings.Join(os.Environ(), "\n")), 0o600)
	case "sleep":
		record(args[0])
		time.Sleep(time.Hour)
	case "deaf": // to all that can be ignored
		signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
		record(args[0])
		time.Sleep(time.Hour)
	case "catch": // one signal, and say which
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, unix.SIGTERM, unix.SIGUSR1)
		record(args[0])
		sig := (<-caught).(unix.Signal)
		return int(sig)
	case "tree": // breadth children of which each has a daemon
		breadth, _ := strconv.Atoi(args[1])
		for range breadth {
			spawn("fork", args[0], "setsid")
		}
		spawn("deaf", args[0])
		record(args[0])
		time.Sleep(time.Hour)
	case "fork": // a daemon: in a session of its own, its parent gone
		spawnIn(&syscall.SysProcAttr{Setsid: true}, "deaf", args[0])
	case "pglead": // that gives its command an hour's grace, or has none yet
		_ = os.Unsetenv("CHILD_TEST_ROLE")
		parent, err := child.NewParent(nil)
		if err != nil {
			panic(err)
		}
		g, err := parent.StartGuard(nil)
		if err == nil && args[1] == "run" {
			_, err = g.StartCommand(context.Background(), roleSpec(child.Spec{LostGrace: time.Hour, MostGrace: time.Hour}, "deaf", args[0]))
		}
		if err != nil {
			panic(err)
		}
		if args[1] == "idle" {
			recordOf(args[0], child.UnusedPID(g))
		}
		time.Sleep(time.Hour)
	case "leave": // something behind
		spawn(args[1], args[0])
		awaitRecords(args[0], 1)
		return 3
	}
	return 0
}

func spawn(role string, args ...string) { spawnIn(nil, role, args...) }

func spawnIn(attr *syscall.SysProcAttr, role string, args ...string) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "CHILD_TEST_ROLE="+role)
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

// record leaves this process's number in a directory.
func record(dir string) { recordOf(dir, os.Getpid()) }

func recordOf(dir string, pid int) {
	if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(pid)), nil, 0o600); err != nil {
		panic(err)
	}
}

func records(dir string) []int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		panic(err)
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			panic(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

const patience = 30 * time.Second

func awaitRecords(dir string, n int) []int {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		if pids := records(dir); len(pids) >= n {
			return pids
		}
	}
	panic(fmt.Sprintf("%d of %d processes started", len(records(dir)), n))
}

func far() boottime.Instant { return boottime.Now().Add(time.Hour) }

func newGuard(tb testing.TB, socket syscall.Conn) *child.Guard {
	tb.Helper()
	parent, err := child.NewParent(nil)
	if err != nil {
		tb.Fatal(err)
	}
	g, err := parent.StartGuard(socket)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func startRole(t *testing.T, spec child.Spec, role string, args ...string) *child.Child {
	t.Helper()
	return startRoleWith(t, nil, spec, role, args...)
}

// roleSpec is spec for a command that is one of this test binary's roles.
func roleSpec(spec child.Spec, role string, args ...string) child.Spec {
	spec.Path = "/proc/self/exe"
	spec.Args = append([]string{"command"}, args...)
	spec.Env = append(os.Environ(), "CHILD_TEST_ROLE="+role)
	if spec.Deadline == 0 {
		spec.Deadline = far()
	}
	if spec.GuardPatience == 0 {
		spec.GuardPatience = 2 * time.Second
	}
	return spec
}

func startRoleWith(t *testing.T, socket syscall.Conn, spec child.Spec, role string, args ...string) *child.Child {
	t.Helper()
	g := newGuard(t, socket)
	c, err := g.StartCommand(t.Context(), roleSpec(spec, role, args...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Kill()
		<-c.Done()
	})
	return c
}

// treeSize counts a tree's processes that leave a record: the root, its deaf
// child, and the daemons.
func treeSize(breadth int) int { return breadth + 2 }

func startTree(t *testing.T, spec child.Spec, breadth int) (*child.Child, []int) {
	t.Helper()
	return startTreeWith(t, nil, spec, breadth)
}

func startTreeWith(t *testing.T, socket syscall.Conn, spec child.Spec, breadth int) (*child.Child, []int) {
	t.Helper()
	dir := t.TempDir()
	c := startRoleWith(t, socket, spec, "tree", dir, strconv.Itoa(breadth))
	return c, awaitRecords(dir, treeSize(breadth))
}

func await(t *testing.T, c *child.Child) child.Result {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("the child never ends")
	}
	return c.Result()
}

func awaitEvent(t *testing.T, c *child.Child) child.Event {
	t.Helper()
	select {
	case e := <-c.Events():
		return e
	case <-time.After(patience):
		t.Fatal("no event")
		panic("unreachable")
	}
}

// assertDead fails for a process that lives at this moment: no waiting here,
// since Done has promised it.
func assertDead(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d is not dead and reaped: %v", pid, err)
		}
	}
}
