package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/session"
)

// These are the tests of what a host can do to pglead, its guard and its command.

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

// guardOf waits for the guard of a pglead.
func guardOf(t *testing.T, pglead int) int {
	t.Helper()
	var guard int
	if !eventually(func() bool {
		out, err := exec.Command("pgrep", "-P", strconv.Itoa(pglead), "-x", "lease-guard").Output()
		if err != nil {
			return false
		}
		guard, err = strconv.Atoi(strings.TrimSpace(string(out)))
		return err == nil
	}) {
		t.Fatalf("process %d has no guard", pglead)
	}
	return guard
}

// dead says that a process is gone, or is a zombie of somebody's.
func dead(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "Z")
}

// says fails unless a text is what a regular expression says, from end to end.
func says(t *testing.T, text, want string) {
	t.Helper()
	if !regexp.MustCompile(`\A(?:` + want + `)\z`).MatchString(text) {
		t.Errorf("it says\n%s\nwant\n%s", text, want)
	}
}

// TestStoppedGuardHoldsNothingUp: a guard that is stopped, with so many signals
// pending that its socket has no room for the order to kill, does not keep the
// command alive for longer than the contract has it.
func TestStoppedGuardHoldsNothingUp(t *testing.T) {
	const lease = 3 * time.Second
	for name, signals := range map[string]int{"idle": 0, "with signals pending": 1000} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			key := "stopped guard " + strconv.Itoa(signals)
			holder := command(t, "run", "--key", key, "--lease", "3s", "--", "sh", "-c", `echo $$ $PGLEAD_BACKEND_PID; exec sleep 1000`)
			holder.Stderr = &said
			line, _ := start(t, holder)
			var job, backend int
			if _, err := fmt.Sscan(line, &job, &backend); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(guardOf(t, holder.Process.Pid), syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			for range signals {
				_ = holder.Process.Signal(syscall.SIGWINCH)
				time.Sleep(200 * time.Microsecond) // else most of them come to one
			}
			terminated := time.Now()
			if _, err := theBench.server.Query("postgres", fmt.Sprintf("SELECT pg_terminate_backend(%d)", backend)); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { return dead(job) }) {
				t.Fatal("the command lives on")
			}
			// The last heartbeat was at most a fifth of the lease before.
			if took, most := time.Since(terminated), session.TakeoverDelay(lease)-lease/5; took > most {
				t.Errorf("the command was dead %v after the loss, more than %v", took, most)
			}
			_ = holder.Wait()
			if code := holder.ProcessState.ExitCode(); code != 76 {
				t.Errorf("status %d, want 76", code)
			}
			says(t, said.String(), `pglead: "stopped guard \d+": the lock in .* was lost \(last known held \S+ before\): the server ended the session: .* \(57P01\); `+
				`the command \(process \d+\) was killed(?: with all that it had started, \d+ processes)?; for that its guard process, which did not do so in time, was killed, too\n`)
		})
	}
}

// TestStoppedGuardStartsNothing: a guard that is stopped before it has taken in a
// large environment keeps the lock for nobody, neither beyond the deadline nor
// from a pglead that is told to end.
func TestStoppedGuardStartsNothing(t *testing.T) {
	large := strings.Repeat("x", 100_000)
	for name, tt := range map[string]struct {
		lease     string
		interrupt bool
		status    int
		says      string
	}{
		"deadline":    {lease: "3s", status: 70, says: `pglead: deadline: the guard process did not start the command in time\n`},
		"interrupted": {lease: "1h", interrupt: true, status: 128 + int(syscall.SIGTERM)},
	} {
		t.Run(name, func(t *testing.T) {
			_, release := start(t, command(t, "run", "--key", name, "--", "sh", "-c", "echo held; read end"))
			var said bytes.Buffer
			waiter := command(t, "run", "--key", name, "--lease", tt.lease, "--wait", "1m", "--lock-delay", "0", "--", "touch", "never")
			waiter.Stderr = &said
			for i := range 15 {
				waiter.Env = append(waiter.Env, fmt.Sprintf("LARGE%d=%s", i, large))
			}
			if err := waiter.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = waiter.Process.Kill() })
			if !eventually(func() bool { return theBench.waiters(name) == 1 }) {
				t.Fatal("it doesn't wait")
			}
			guard := guardOf(t, waiter.Process.Pid)
			if err := syscall.Kill(guard, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			release()
			ended := make(chan struct{})
			go func() {
				_ = waiter.Wait()
				close(ended)
			}()
			if tt.interrupt {
				if !eventually(func() bool { return theBench.holders(name) == 1 && theBench.waiters(name) == 0 }) {
					t.Fatal("it is not granted the lock")
				}
				_ = waiter.Process.Signal(syscall.SIGTERM)
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("it keeps the lock for nobody")
			}
			status := waiter.ProcessState.Sys().(syscall.WaitStatus)
			code := status.ExitStatus()
			if status.Signaled() {
				code = 128 + int(status.Signal())
			}
			if code != tt.status {
				t.Errorf("status %d, want %d", code, tt.status)
			}
			says(t, said.String(), tt.says)
			if !dead(guard) {
				t.Error("the guard is left")
			}
			if n := theBench.holders(name); n != 0 {
				t.Error("the lock is not free")
			}
			if _, err := os.Stat(filepath.Join(waiter.Dir, "never")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the command was started: %v", err)
			}
		})
	}
}

// TestReasonOfSilence: where the server falls silent it is not pglead that was
// stopped, whoever notices first.
func TestReasonOfSilence(t *testing.T) {
	const holders = 12
	server := throwaway(t, nil)
	said, ended := make([]bytes.Buffer, holders), make([]*exec.Cmd, holders)
	var backends []int
	for i := range holders {
		cmd := command(t, "run", "--dsn", server.DSN("postgres"), "--key", fmt.Sprint("silence", i), "--lease", "3s", "--", "sh", "-c", "echo $PGLEAD_BACKEND_PID; exec sleep 1000")
		cmd.Stderr = &said[i]
		line, _ := start(t, cmd)
		backend, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		backends, ended[i] = append(backends, backend), cmd
	}
	for _, backend := range backends {
		if err := syscall.Kill(backend, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(backend, syscall.SIGCONT) }()
	}
	for i, cmd := range ended {
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 76 {
			t.Errorf("status %d, want 76", code)
		}
		says(t, said[i].String(), `pglead: silence\d+: the lock in .* was lost \(last known held 1\.\d+s before\): the server does not answer; the command \(process \d+\) was killed(?: with all that it had started, \d+ processes)?.*\n`)
	}
}

// TestStoppedPgleadHoldsNothingUp: a command that is stopped again and again has
// its guard say so to a pglead that is stopped, too, until the socket is full. The
// guard kills at the deadline all the same.
func TestStoppedPgleadHoldsNothingUp(t *testing.T) {
	const lease = 9 * time.Second
	holder := command(t, "run", "--key", "stopped pglead", "--lease", "9s", "--", "sh", "-c", "echo $$; exec sleep 1000")
	line, _ := start(t, holder)
	job, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	_ = holder.Process.Signal(syscall.SIGSTOP)
	defer func() { _ = holder.Process.Signal(syscall.SIGCONT) }()
	for range 1000 {
		_ = syscall.Kill(job, syscall.SIGSTOP)
		time.Sleep(time.Millisecond)
		_ = syscall.Kill(job, syscall.SIGCONT)
	}
	if !eventually(func() bool { return dead(job) }) {
		t.Fatal("the command lives on")
	}
	if took, most := time.Since(stopped), session.TakeoverDelay(lease); took > most {
		t.Errorf("the command was dead %v after its pglead was stopped, more than %v", took, most)
	}
}

// TestHiders: a daemon whose first thread has ended, and one that forks and exits
// each millisecond, are named and ended, with a control group to do it in and
// without, whoever has to end them.
func TestHiders(t *testing.T) {
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
					says: `pglead: KEY: the command has ended; ending what it left running: pglead\.test \(\d+.*\)\n`,
				},
				"wait, and SIGTERM": {
					flags: []string{"--leftovers", "wait", "--kill-after", "0.5"}, status: 5,
					job:  leaves + "(sleep 1; kill -TERM $PGLEAD) & exit 5",
					says: `pglead: KEY: the command did not end after SIGTERM; killing it and all that it started\n`,
				},
				"SIGKILL of pglead": {job: leaves + "kill -KILL $PGLEAD; sleep 1000", status: 137},
				"SIGKILL of the guard": {job: leaves + "kill -KILL $PPID; sleep 1000", status: 70, // it may be dead before it has said that the command runs
					says: `pglead: KEY: the guard process (?:died; .*|ended before the command could start: .*)\n(?:pglead: hint: .*\n)?`},
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
					status := cmd.ProcessState.Sys().(syscall.WaitStatus)
					code := status.ExitStatus()
					if status.Signaled() {
						code = 128 + int(status.Signal())
					}
					if code != tt.status {
						t.Errorf("status %d, want %d", code, tt.status)
					}
					says(t, said.String(), strings.ReplaceAll(tt.says, "KEY", regexp.QuoteMeta(key)))
					if !eventually(func() bool { return theBench.holders(key) == 0 }) {
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
	var said lockedBuffer
	cmd := command(t, "run", "--key", "traced", "--", "sh", "-c", `sleep 1000 & echo $!; read end; exit 5`)
	cmd.Stderr = &said
	line, release := start(t, cmd)
	traced, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	attached, detach := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the tracer is a thread
		_, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(traced), 0, 0, 0, 0)
		if errno != 0 {
			attached <- errno
			return
		}
		attached <- nil
		<-detach
		for status := syscall.WaitStatus(0); !status.Signaled(); {
			if _, err := syscall.Wait4(traced, &status, syscall.WALL, nil); err != nil {
				t.Errorf("wait: %v", err)
				return
			}
		}
	}()
	if err := <-attached; err != nil {
		t.Fatal(err)
	}
	release()
	if !eventually(func() bool { return strings.Contains(said.String(), "can't be killed") }) {
		t.Error("what is left is not named")
	}
	close(detach)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("status %d, want 5", code)
	}
	by := fmt.Sprintf("traced by process %d", os.Getpid())
	says(t, said.String(), `pglead: traced: the command has ended; ending what it left running: sleep \(\d+, `+by+`\)\n`+
		`pglead: traced: these processes can't be killed, and the lock stays held while they live: sleep \(\d+, dead, `+by+`\)\n`)
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

// TestUnkillableAfterLoss: of a lock that is lost nobody says that it stays held.
func TestUnkillableAfterLoss(t *testing.T) {
	requireRoot(t, "a setuid program")
	dsn, dir := openServer(t), openDir(t)
	suid := becomesRoot(t, dir)
	for name, early := range map[string]bool{"lost first": false, "unkillable first": true} {
		t.Run(name, func(t *testing.T) {
			var said lockedBuffer
			cmd := exec.Command("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
				filepath.Join(theBench.dir, "pglead"), "run", "--dsn", dsn, "--key", "suid", "--kill-after", "100ms", "--lock-delay", "0", "--", "sh", "-c",
				suid+` --reuid 0 --regid 0 --clear-groups sh -c 'echo '$PGLEAD_BACKEND_PID' $$; exec sleep 1000 >&-' & trap "" TERM; while :; do sleep 0.05; done`)
			cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
			cmd.Stderr = &said
			line, _ := start(t, cmd)
			var backend, sleeper int
			if _, err := fmt.Sscan(line, &backend, &sleeper); err != nil {
				t.Fatal(err)
			}
			const held, lost = "and the lock stays held while they live", "and the lock is lost: another node may run the command while they live"
			complained := func(consequence string) bool {
				return eventually(func() bool { return strings.Contains(said.String(), consequence) })
			}
			want := ""
			if early {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				if !complained(held) {
					t.Error("not reported before the loss")
				}
				want = `pglead: suid: the command did not end after SIGTERM; killing it and all that it started\n` +
					`pglead: suid: these processes can't be killed, ` + held + `: sleep \(\d+\)\n`
			}
			_ = syscall.Kill(backend, syscall.SIGTERM)
			if !complained(lost) {
				t.Error("not reported after the loss")
			}
			_ = syscall.Kill(sleeper, syscall.SIGKILL)
			_ = cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != 76 {
				t.Errorf("status %d, want 76", code)
			}
			says(t, said.String(), want+`pglead: suid: these processes can't be killed, `+lost+`: sleep \(\d+\)\npglead: suid: the lock in .* was lost .*\n`)
		})
	}
}

// TestUnreadMessages: the command gets its TERM whether or not anybody can be told
// about it.
func TestUnreadMessages(t *testing.T) {
	const said = "pglead: unread: the command ran for all of the 300ms that --timeout allows; sending SIGTERM\n"
	job := `trap "touch terminated" TERM; until test -e terminated -a -e end; do sleep 0.01; done; exit 7`
	run := func(t *testing.T, stderr *os.File) *exec.Cmd {
		t.Helper()
		cmd := command(t, "run", "--key", "unread", "--timeout", "300ms", "--", "sh", "-c", job)
		cmd.Stderr = stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	ends := func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		if !eventually(func() bool { _, err := os.Stat(filepath.Join(cmd.Dir, "terminated")); return err == nil }) {
			t.Error("the command gets no TERM")
		}
		if err := os.WriteFile(filepath.Join(cmd.Dir, "end"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		overdue := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		if !overdue.Stop() {
			t.Error("it never ends")
		}
		if code := cmd.ProcessState.ExitCode(); code != 124 {
			t.Errorf("%v, want status 124", cmd.ProcessState)
		}
	}
	full := func(t *testing.T) (reader, writer *os.File, filled int) {
		t.Helper()
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
		_ = writer.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		filled, _ = writer.Write(make([]byte, 1<<20))
		return reader, writer, filled
	}
	t.Run("the reader is gone", func(t *testing.T) {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = reader.Close()
		cmd := run(t, writer)
		_ = writer.Close()
		ends(t, cmd)
	})
	t.Run("nobody reads", func(t *testing.T) {
		_, writer, _ := full(t)
		ends(t, run(t, writer))
	})
	t.Run("somebody reads late", func(t *testing.T) {
		reader, writer, filled := full(t)
		cmd := run(t, writer)
		_ = writer.Close()
		if !eventually(func() bool { _, err := os.Stat(filepath.Join(cmd.Dir, "terminated")); return err == nil }) {
			t.Error("the command gets no TERM before anybody reads")
		}
		read := make(chan []byte)
		go func() {
			all, _ := io.ReadAll(reader)
			read <- all
		}()
		ends(t, cmd)
		if all := <-read; string(all[min(filled, len(all)):]) != said {
			t.Errorf("after %d bytes: %q, want %q", filled, all[min(filled, len(all)):], said)
		}
	})
}

// TestInterruptFromElsewhere: in a terminal's foreground the command hears each
// SIGINT once, the terminal's and that which somebody sends to pglead alone.
func TestInterruptFromElsewhere(t *testing.T) {
	term := newTerminal(t)
	term.write(`pglead run --key elsewhere -- bash -c 'trap "n=\$((n+1)); echo in''terrupt \$n" INT; trap "echo qu''it" QUIT; echo st''arted $(ps -o ppid= -p $PPID) .; while test "$n" != 3; do read -t 0.01; done; echo do''ne $n'` + "\n")
	term.expect("started ")
	fields := strings.Fields(term.expect("\r\n"))
	pglead, err := strconv.Atoi(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pglead, syscall.SIGINT)
	term.expect("interrupt 1")
	term.write("\x03")
	term.expect("interrupt 2")
	_ = syscall.Kill(pglead, syscall.SIGQUIT)
	if before := term.expect("quit"); strings.Contains(before, "interrupt") {
		t.Errorf("one Ctrl-C arrived twice: %q", before)
	}
	_ = syscall.Kill(pglead, syscall.SIGINT)
	term.expect("interrupt 3")
	term.expect("done 3")
	term.expect(prompt)
}
