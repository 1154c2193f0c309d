package child_test

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
)

// noFiles is a limit of open files that lets a process open none: the guard has as many open from
// its start. poll(2) needs the limit to be as high as the number of descriptors that it is given.
const noFiles = 4

// TestKillWithoutDescriptors: a guard that may open no file any more kills the whole tree, with a
// control group and without.
func TestKillWithoutDescriptors(t *testing.T) {
	for name, adjust := range map[string]func(*child.Guards){"may have a group": func(*child.Guards) {}, "no group": child.GiveNoGroups} {
		t.Run(name, func(t *testing.T) {
			guards, err := child.NewGuards()
			if err != nil {
				t.Fatal(err)
			}
			adjust(guards)
			guard, err := guards.Start(nil)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			c, err := guard.StartCommand(t.Context(), roleConfig(child.Config{}, "tree", dir, strconv.Itoa(3)))
			if err != nil {
				t.Fatal(err)
			}
			pids := awaitRecords(dir, treeSize(3))
			pid := child.GuardPID(c)
			var before unix.Rlimit
			if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
				t.Fatal(err)
			}
			limitFiles(t, pid, noFiles, before.Max)
			t.Cleanup(func() {
				if t.Failed() { // the guard would go on for ever
					limitFiles(t, pid, before.Cur, before.Max)
				}
			})
			c.Kill()
			r := await(t, c)
			assertDead(t, pids)
			if r.Ending != child.Killed || r.Killed < len(pids) {
				t.Errorf("%+v, want at least %d killed", r, len(pids))
			}
		})
	}
}

// limitFiles sets a process's limit of open files.
func limitFiles(t *testing.T, pid int, current, most uint64) {
	t.Helper()
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: current, Max: most}, nil); err != nil {
		t.Error(err)
	}
}

// TestKillUnlisted: a guard that finds no process, for want of descriptors, kills the command all
// the same.
func TestKillUnlisted(t *testing.T) {
	command := exec.Command("sleep", "3600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(patience, func() { _ = command.Process.Signal(unix.SIGTERM) }).Stop()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	limitFiles(t, os.Getpid(), 0, before.Max)
	child.KillUnlisted(command.Process.Pid)
	limitFiles(t, os.Getpid(), before.Cur, before.Max)
	_ = command.Wait()
	if s := command.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != unix.SIGKILL {
		t.Errorf("it ended: %s", command.ProcessState)
	}
}

// TestExitIsNoKill: what exits by itself during a kill is not counted as killed.
func TestExitIsNoKill(t *testing.T) {
	for _, script := range []string{"exit 3", "kill -KILL $$"} {
		command := exec.Command("sh", "-c", script)
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		if err := unix.Waitid(unix.P_PID, command.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
			t.Fatal(err)
		}
	}
	if killed := child.ReapInKill(); killed != 1 {
		t.Errorf("%d of two count as killed, want the one that a signal ended", killed)
	}
}
