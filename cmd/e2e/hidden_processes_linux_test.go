package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// init lets the test binary be a command that hides from who looks for it in the
// process table. It runs on the process's first thread.
func init() { //nolint:gochecknoinits // a role is played before any test is set up
	switch os.Getenv("HOST_TEST_ROLE") {
	case "headless":
		// The first thread ends, and the process looks like a zombie.
		signal.Ignore(syscall.SIGTERM)
		go func() {
			for file := signsOfLife(); ; time.Sleep(time.Millisecond) {
				_, _ = file.WriteString(".")
			}
		}()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	case "chain":
		// A child each millisecond, and the end of its parent. There is no Go
		// runtime to speak of in a process that was forked, only system calls.
		signal.Ignore(syscall.SIGTERM)
		file := signsOfLife().Fd()
		pause := syscall.Timespec{Nsec: 1e6}
		for {
			_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, file, uintptr(unsafe.Pointer(&pause)), 1)
			_, _, _ = syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
			pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
			if pid != 0 && errno == 0 {
				_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
			}
		}
	}
}

// signsOfLife is a file that grows for as long as the process is alive.
func signsOfLife() *os.File {
	file, err := os.OpenFile("alive", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		panic(err)
	}
	return file
}

// TestHidersAreEnded: a daemon whose first thread has ended, and one that forks and exits
// each millisecond, are named and ended, with a control group to do it in and
// without, whoever has to end them.
func TestHidersAreEnded(t *testing.T) {
	racesNothing(t)
	requireRoot(t, "control groups, and to go without")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const leaves = `"$0" & until test -s alive; do sleep 0.01; done; `
	for _, hider := range []string{"headless", "chain"} {
		for groups, around := range map[string][]string{
			"group":    nil,
			"no group": {"unshare", "--mount", "sh", "-c", `umount -R -l /sys/fs/cgroup; exec "$@"`, "sh"},
		} {
			for end, tt := range map[string]struct {
				flags  []string
				job    string
				status int
				says   string
			}{
				"leftovers": {
					job: leaves + "exit 5", status: 5,
					says: `pglead: KEY: the command has ended; ending what it left running: e2e\.test \(\d+.*\)\n`,
				},
				"wait, and SIGTERM": {
					flags: []string{"--leftovers", "wait", "--kill-after", "0.5"}, status: 5,
					job:  leaves + "(sleep 1; kill -TERM $PGLEAD) & exit 5",
					says: `pglead: KEY: what the command left running does not end; killing it\n`,
				},
				"SIGKILL of pglead": {job: leaves + "kill -KILL $PGLEAD; sleep 1000", status: 137},
				"SIGKILL of the guard": {job: leaves + "kill -KILL $PPID; sleep 1000", status: 70, // it may be dead before it has said that the command runs
					says: `pglead: KEY: the guard process (?:died; .*|died before it said that the command runs; if it did run, it was killed)\n(?:pglead: hint: .*\n)?`},
			} {
				t.Run(hider+", "+groups+", "+end, func(t *testing.T) {
					t.Parallel()
					key := strings.NewReplacer(" ", "-", ",", "").Replace(t.Name())
					cmd := command(t)
					args := append([]string{"run", "--key", key}, tt.flags...)
					args = append(args, "--", "sh", "-c", "export HOST_TEST_ROLE="+hider+" PGLEAD=$(ps -o ppid= -p $PPID); "+tt.job, self)
					cmd.Args = append(append(append([]string{}, around...), cmd.Path), args...)
					if around != nil {
						cmd.Path, _ = exec.LookPath(around[0])
					}
					var said bytes.Buffer
					cmd.Stderr = &said
					began := time.Now()
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					overdue := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
					_ = cmd.Wait()
					if !overdue.Stop() {
						t.Errorf("not ended within %v", time.Since(began))
					}
					if code := shellStatus(cmd.ProcessState); code != tt.status {
						t.Errorf("status %d, want %d", code, tt.status)
					}
					says(t, said.String(), strings.ReplaceAll(tt.says, "KEY", regexp.QuoteMeta(key)))
					if !eventually(func() bool { return testbed.holders(key) == 0 }) {
						t.Fatal("the lock is never free")
					}
					size := func() int64 {
						info, err := os.Stat(filepath.Join(cmd.Dir, "alive"))
						if err != nil {
							t.Fatal(err)
						}
						return info.Size()
					}
					before := size()
					time.Sleep(300 * time.Millisecond)
					if size() != before {
						t.Error("the lock is free, and the hider lives")
					}
				})
			}
		}
	}
}

// TestTracedLeftover: what is dead and can't be reaped, since it is traced from
// elsewhere, is named with who traces it.
func TestTracedLeftover(t *testing.T) {
	racesNothing(t)
	var said lockedBuffer
	cmd := command(t, "run", "--key", "traced", "--", "sh", "-c", `sleep 1000 & echo $!; read end; exit 5`)
	cmd.Stderr = &said
	line, release := start(t, cmd)
	leftover, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { // traced stops it, and until then it may still be the shell's copy
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", leftover))
		return string(name) == "sleep\n"
	}) {
		t.Fatal("the command starts nothing")
	}
	detach := traced(t, leftover, 0)
	release()
	if !eventually(func() bool { return strings.Contains(said.String(), "can't be killed") }) {
		t.Error("what is left is not named")
	}
	detach()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("status %d, want 5", code)
	}
	by := fmt.Sprintf("traced by process %d", os.Getpid())
	says(t, said.String(), `pglead: traced: the command has ended; ending what it left running: sleep \(\d+, `+by+`\)\n`+
		`pglead: traced: these processes can't be killed, and the lock stays held while they live: sleep \(\d+, dead, `+by+`\)\n`)
}

// TestTracedCommand: so is the command itself. What it left running is ended all the same, as that
// may be what traces it.
func TestTracedCommand(t *testing.T) {
	racesNothing(t)
	var said lockedBuffer
	cmd := command(t, "run", "--key", "traced_command", "--", "sh", "-c", "sleep 1000 & echo $$; exec sleep 1000")
	cmd.Stderr = &said
	line, _ := start(t, cmd)
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	detach := traced(t, pid, 0)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return strings.Contains(said.String(), "can't be killed") }) {
		t.Error("the command is not named")
	}
	detach()
	_ = cmd.Wait()
	if state := cmd.ProcessState.String(); state != "signal: killed" { // as the command was
		t.Errorf("it ended so: %s", state)
	}
	dead := fmt.Sprintf(`(sleep|sh) \(%d, dead, traced by process %d\)`, pid, os.Getpid())
	says(t, said.String(), `pglead: traced_command: the command has ended; ending what it left running: sleep \(\d+\)\n`+
		`pglead: traced_command: these processes can't be killed, and the lock stays held while they live: `+dead+`\n`)
}

// TestGroupsOfTwoNamespaces: in two PID namespaces two guards have one number. The
// end of the one does nothing to the other's command.
func TestGroupsOfTwoNamespaces(t *testing.T) {
	requireRoot(t, "PID namespaces")
	inside := func(args ...string) *exec.Cmd {
		cmd := command(t)
		cmd.Args = append([]string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child", cmd.Path, "run", "-q"}, args...)
		cmd.Path, _ = exec.LookPath("unshare")
		return cmd
	}
	var holders []*exec.Cmd
	var releases []func()
	for i := range 5 {
		cmd := inside("--key", fmt.Sprint("namespace", i), "--", "sh", "-c", "echo started; read end")
		_, release := start(t, cmd)
		holders, releases = append(holders, cmd), append(releases, release)
	}
	for range 15 {
		cmd := inside("--key", "namespace", "--", "sh", "-c", "kill -KILL $PPID; sleep 1000")
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != 70 {
			t.Errorf("status %d, want 70", code)
		}
	}
	for i, cmd := range holders {
		releases[i]()
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 1 { // of read
			t.Errorf("holder %d: %v", i, err)
		}
	}
}
