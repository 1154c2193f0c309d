package child_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
)

// noFiles is a limit of open files that lets a process open none: the guard has as many open from
// its start. poll(2) needs the limit to be as high as the number of descriptors that it is given.
const noFiles = 4

// TestKillWithoutDescriptors: a guard that may open no file any more kills the whole tree, with a
// control group and without.
func TestKillWithoutDescriptors(t *testing.T) {
	for name, adjust := range map[string]func(*child.Parent){"may have a group": func(*child.Parent) {}, "no group": child.GiveNoGroups} {
		t.Run(name, func(t *testing.T) {
			parent, err := child.NewParent(nil)
			if err != nil {
				t.Fatal(err)
			}
			adjust(parent)
			guard, err := parent.StartGuard(nil)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			c, err := guard.StartCommand(t.Context(), roleSpec(child.Spec{}, "tree", dir, strconv.Itoa(3)))
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
			if r.Ending != child.ByOrder || int(r.Killed) < len(pids) {
				t.Errorf("%+v, want at least %d killed", r, len(pids))
			}
		})
	}
}

// TestGuardDiesWithoutDescriptors: a guard is killed while this process may open no file, and so
// can't see what the guard has left behind. The command does not count as dead before that has been
// seen.
func TestGuardDiesWithoutDescriptors(t *testing.T) {
	parent, err := child.NewParent(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := parent.StartGuard(nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c, err := guard.StartCommand(t.Context(), roleSpec(child.Spec{}, "tree", dir, "3"))
	if err != nil {
		t.Fatal(err)
	}
	pids := awaitRecords(dir, treeSize(3))
	var before unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	limitFiles(t, 0, noFiles, before.Max)
	defer limitFiles(t, 0, before.Cur, before.Max)
	_ = unix.Kill(child.GuardPID(c), unix.SIGKILL)
	select {
	case e := <-c.Events():
		if !strings.Contains(e.Unkillable, "can't be listed") {
			t.Errorf("%+v", e)
		}
	case <-c.Done():
		t.Error("the command counts as dead")
	}
	limitFiles(t, 0, before.Cur, before.Max)
	if r := await(t, c); r.Ending != child.GuardDied {
		t.Errorf("%+v", r)
	}
	assertDead(t, pids)
}

// limitFiles sets a process's limit of open files.
func limitFiles(t *testing.T, pid int, current, most uint64) {
	t.Helper()
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: current, Max: most}, nil); err != nil {
		t.Error(err)
	}
}

// TestLeftoversWithoutPidfds: where the kernel refuses pidfds, as in some containers, what outlives
// the command gets the signals that are meant for it.
func TestLeftoversWithoutPidfds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		refuse uint32
		spec   child.Spec
		signal func(c *child.Child)
	}{
		{"no pidfd_open", unix.SYS_PIDFD_OPEN, child.Spec{}, func(*child.Child) {}},
		{"no pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL, child.Spec{}, func(*child.Child) {}},
		{"passed on", unix.SYS_PIDFD_OPEN, child.Spec{WaitForLeftovers: true}, func(c *child.Child) { c.Signal(unix.SIGTERM) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runtime.LockOSThread() // for good: the thread ends with this test, and the filter with it
			refuseCall(t, tt.refuse)
			dir := t.TempDir()
			c := startRole(t, tt.spec, "leave", dir, "catch")
			awaitEvent(t, c)
			tt.signal(c)
			r := await(t, c)
			assertDead(t, records(dir))
			if want := (child.Result{Ending: child.Exited, Status: 3 << 8}); r != want {
				t.Errorf("%+v, want %+v", r, want)
			}
		})
	}
}

// refuseCall makes the kernel refuse a system call to this thread, and to the processes that it
// starts.
func refuseCall(t *testing.T, number uint32) {
	t.Helper()
	const call = 0 // where struct seccomp_data has the call's number
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: call},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		t.Fatal(err)
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

// TestLossInGrace: another loss during a grace does not begin it anew.
func TestLossInGrace(t *testing.T) {
	command := exec.Command("sleep", "3600")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	first, second := child.LoseTwice(command.Process.Pid, time.Minute)
	if first == 0 || second != first {
		t.Errorf("it is over at %v, and then at %v", first, second)
	}
	_ = command.Wait()
	if s := command.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != unix.SIGTERM {
		t.Errorf("it ended: %s", command.ProcessState)
	}
}

// TestReusedNumber: a process that has got the number of a command that is reaped is not taken for
// the command, nor one that has got the number of a process below the guard for that one. If its
// parent has died meanwhile, it is still the same.
func TestReusedNumber(t *testing.T) {
	command := exec.Command("sh", "-c", "exit 3")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, command.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if status := child.ReapAfter(command.Process.Pid, 7<<8); status.ExitStatus() != 7 {
		t.Errorf("the dead command's status is now %d", status.ExitStatus())
	}

	if _, err := child.NewParent(nil); err != nil { // the parent of orphans
		t.Fatal(err)
	}
	parent := exec.Command("sh", "-c", "sleep 3600 & echo $!; wait; exec sleep 3600")
	out, err := parent.StdoutPipe()
	if err == nil {
		err = parent.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var other int
	if _, err := fmt.Fscan(out, &other); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(patience, func() { _ = parent.Process.Kill() }).Stop()
	child.SignalBelow(other, os.Getpid(), unix.SIGKILL)        // its parent is another one
	child.SignalBelow(parent.Process.Pid, other, unix.SIGTERM) // it is this process's child by now
	_ = parent.Wait()
	if s := parent.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != unix.SIGTERM {
		t.Errorf("the one whose parent has died: %s", parent.ProcessState)
	}
	_ = unix.Kill(other, unix.SIGTERM)
	var status unix.WaitStatus
	if _, err := unix.Wait4(other, &status, 0, nil); err != nil || status.Signal() != unix.SIGTERM {
		t.Errorf("the other process has got signal %v, %v", status.Signal(), err)
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
