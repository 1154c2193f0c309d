package e2e

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestTracedGuard: a debugger keeps the guard from working and, once it is killed, from dying or
// from being reaped. When the lock is lost, pglead kills the tree all the same, and names the
// guard.
func TestTracedGuard(t *testing.T) {
	for name, options := range map[string]uintptr{"dead": 0, "undying": unix.PTRACE_O_TRACEEXIT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := "traced_guard_" + name
			var said lockedBuffer
			cmd := command(t, "run", "--lease", "6s", "--key", key, "--", "sh", "-c", "setsid sleep 1000 & echo $!; exec sleep 1000")
			cmd.Stderr = &said
			line, _ := start(t, cmd)
			daemon, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			guard := guardOf(t, cmd.Process.Pid)
			tree := append(children(guard), daemon)
			detach := traced(t, guard, options)
			ask(t, testbed.server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%"+key+"@%'")
			if !eventually(func() bool { return dead(tree[0]) && dead(daemon) }) {
				t.Errorf("the lock is lost, and one of %v is alive", tree)
			}
			if !eventually(func() bool { return strings.Contains(said.String(), "can't be killed") }) {
				t.Error("the guard is not named")
			}
			detach()
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 76 {
				t.Errorf("status %d, want 76", code)
			}
			says(t, said.String(), fmt.Sprintf(`pglead: %[1]s: these processes can't be killed, and the lock is lost: `+
				`another node may run the command while they live: lease-guard \(%[2]d, (dead, )?traced by process %[3]d\)\n`+
				`pglead: %[1]s: the lock in .* was lost .*; the command \(process %[4]d\) was killed with all that it had started, .*\n`,
				key, guard, os.Getpid(), tree[0]))
		})
	}
}

// TestTracedBeforeStart: a debugger keeps the guard from starting the command, and from being reaped
// when it is killed for that. Its pglead keeps the lock, and names the guard.
func TestTracedBeforeStart(t *testing.T) {
	t.Parallel()
	const key = "traced_before_start"
	holder := command(t, "run", "--key", key, "--", "sh", "-c", "echo; exec sleep 1000")
	start(t, holder)
	var said lockedBuffer
	cmd := command(t, "run", "--wait", "1m", "--lease", "6s", "--key", key, "--", "true")
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	guard := 0
	if !eventually(func() bool {
		below := children(cmd.Process.Pid)
		if len(below) == 1 {
			guard = below[0]
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", guard))
		return string(name) == "lease-guard\n" // before that it has the program's, and it may not get so far
	}) {
		t.Fatal("a waiter starts no guard")
	}
	detach := traced(t, guard, 0)
	_ = holder.Process.Signal(syscall.SIGTERM)
	_ = holder.Wait()
	if !eventually(func() bool { return strings.Contains(said.String(), "can't be killed") }) {
		t.Error("the guard is not named")
	}
	detach()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 70 {
		t.Errorf("status %d, want 70", code)
	}
	says(t, said.String(), fmt.Sprintf(`pglead: %[1]s: these processes can't be killed, and the lock stays held while they live: `+
		`lease-guard \(%[2]d, (dead, )?traced by process %[3]d\)\n`+
		`pglead: %[1]s: the guard process did not start the command in time\n`, key, guard, os.Getpid()))
}

// traced stops a process as a debugger does. The process can't be reaped, or die, before detach.
func traced(t *testing.T, pid int, options uintptr) (detach func()) {
	t.Helper()
	ptrace := func(request int, data uintptr) error {
		if _, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, uintptr(request), uintptr(pid), 0, data, 0, 0); errno != 0 {
			return errno
		}
		return nil
	}
	attached, goOn, ended := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the tracer is a thread
		err := ptrace(unix.PTRACE_SEIZE, options)
		if err == nil {
			err = ptrace(unix.PTRACE_INTERRUPT, 0)
		}
		attached <- err
		<-goOn
		for status := syscall.WaitStatus(0); err == nil && !status.Signaled(); {
			switch _, err = syscall.Wait4(pid, &status, syscall.WALL, nil); {
			case errors.Is(err, unix.EINTR): // the runtime's own signals interrupt it
				err = nil
			case err == nil && status.Stopped():
				_ = ptrace(unix.PTRACE_CONT, 0)
			}
		}
	}()
	if err := <-attached; err != nil {
		t.Fatal(err)
	}
	return func() {
		close(goOn)
		<-ended
	}
}
