package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// guardOf waits for the guard of a pglead.
func guardOf(t *testing.T, pglead int) int {
	t.Helper()
	var guard int
	if !eventually(func() bool {
		guards := guardsOf(pglead)
		if len(guards) == 1 {
			guard = guards[0]
		}
		return guard != 0
	}) {
		t.Fatalf("process %d has no guard", pglead)
	}
	return guard
}

// guardsOf are the guards of a pglead.
func guardsOf(pglead int) []int { return children(pglead, "-x", "lease-guard") }

// children are those of a process that pgrep selects.
func children(of int, selection ...string) (pids []int) {
	out, _ := exec.Command("pgrep", append([]string{"-P", strconv.Itoa(of)}, selection...)...).Output()
	for _, field := range strings.Fields(string(out)) {
		pid, _ := strconv.Atoi(field)
		pids = append(pids, pid)
	}
	return pids
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

// TestGuardStartsEarly: what pglead alone needs is not set up in the guard. With
// numbers that are none for arguments, it ends where it would begin.
func TestGuardStartsEarly(t *testing.T) {
	initialised := func(args ...string) string {
		cmd := &exec.Cmd{Path: filepath.Join(testbed.dir, "pglead"), Args: args, Env: []string{"GODEBUG=inittrace=1"}}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	pglead, guard := initialised("pglead", "version"), initialised("lease-guard", "of process 1", "none", "none", "none")
	for _, needless := range []string{"net", "regexp", "crypto/tls", "crypto/x509", "golang.org/x/text/language"} {
		line := "\ninit " + needless + " @"
		if !strings.Contains(pglead, line) {
			t.Errorf("pglead does not initialise %s either: the test proves nothing\n%s", needless, pglead)
		}
		if strings.Contains(guard, line) {
			t.Errorf("the guard initialises %s: which import of runner/child needs it?\n%s", needless, guard)
		}
	}
	if !strings.Contains(guard, "\ninit os @") {
		t.Errorf("the guard was not reached: %s", guard)
	}
}

// TestStoppedGuardHoldsNothingUp: a guard that is stopped, with so many signals
// pending that its socket has no room for the order to kill, does not keep the
// command alive for longer than the contract has it.
func TestStoppedGuardHoldsNothingUp(t *testing.T) {
	const lease = 3 * time.Second
	for name, signals := range map[string]int{"idle": 0, "with signals pending": 1000} {
		t.Run(name, func(t *testing.T) {
			var said lockedBuffer
			key := "stopped guard " + strconv.Itoa(signals)
			holder := command(t, "run", "-v", "--log-format", "json", "--key", key, "--lease", "3s", "--", "sh", "-c", `echo $$ $PGLEAD_BACKEND_PID; exec sleep 1000`)
			holder.Stderr = &said
			line, _ := start(t, holder)
			var job, backend int
			if _, err := fmt.Sscan(line, &job, &backend); err != nil {
				t.Fatal(err)
			}
			// A guard that is stopped before it has said so has started nothing.
			if !eventually(func() bool { return strings.Contains(said.String(), `"event":"started"`) }) {
				t.Fatalf("never started: %s", said.String())
			}
			guard := guardOf(t, holder.Process.Pid)
			if err := syscall.Kill(guard, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			go func() { // each heartbeat wakes it
				for !dead(job) {
					_ = syscall.Kill(guard, syscall.SIGSTOP)
					time.Sleep(time.Millisecond)
				}
			}()
			for range signals {
				_ = holder.Process.Signal(syscall.SIGWINCH)
				time.Sleep(200 * time.Microsecond) // else most of them come to one
			}
			terminated := time.Now()
			if _, err := testbed.server.Query("postgres", fmt.Sprintf("SELECT pg_terminate_backend(%d)", backend)); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { return dead(job) }) {
				t.Fatal("the command lives on")
			}
			// The last heartbeat was at most a fifth of the lease before.
			if took, most := time.Since(terminated), leasetime.DeadAfter(lease, 0)-lease/5; took > most {
				t.Errorf("the command was dead %v after the loss, more than %v", took, most)
			}
			_ = holder.Wait()
			if code := holder.ProcessState.ExitCode(); code != 76 {
				t.Errorf("status %d, want 76", code)
			}
			says(t, loud(t, said.String()), `the lock in .* was lost \(last known held \S+ before\): the server ended the session: .* \(57P01\); `+
				`the command \(process \d+\) was killed(?: with all that it had started, \d+ processes)?; for that its guard process, which did not do so in time, was killed, too\n`)
		})
	}
}

// TestStoppedGuardWakes: a command whose guard is stopped, and perhaps the command, too, and whose
// pglead is killed does not live on, and the lock is released. A guard that its command has
// stopped sees the command's end all the same.
func TestStoppedGuardWakes(t *testing.T) {
	for name, both := range map[string]bool{"guard": false, "guard and command": true} {
		t.Run("pglead is killed, "+name+" stopped", func(t *testing.T) {
			key := "wakes " + name
			holder := command(t, "run", "--key", key, "--lease", "1h", "--lock-delay", "0", "--", "sh", "-c", "echo $$; exec >&-; exec sleep 1000")
			line, _ := start(t, holder)
			job, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			guard := guardOf(t, holder.Process.Pid)
			// A heartbeat wakes the guard. With this lease there is none for long after the first.
			if !eventually(func() bool { return testbed.beats(key) == 2 }) {
				t.Fatal("there is no heartbeat")
			}
			if !eventually(func() bool {
				_ = syscall.Kill(guard, syscall.SIGSTOP) // again, since pglead may just act on the answer
				if both {
					_ = syscall.Kill(job, syscall.SIGSTOP)
				}
				return stopped(guard) && stopped(job) == both
			}) {
				t.Fatal("the guard is not stopped")
			}
			_ = holder.Process.Kill()
			_, _ = holder.Process.Wait()
			if !eventually(func() bool { return dead(job) && dead(guard) && testbed.holders(key) == 0 }) {
				t.Errorf("dead: command %v, guard %v; holders: %d", dead(job), dead(guard), testbed.holders(key))
				_ = syscall.Kill(guard, syscall.SIGCONT)
			}
		})
	}
	t.Run("the command ends", func(t *testing.T) {
		var said bytes.Buffer
		holder := command(t, "run", "--key", "wakes", "--", "sh", "-c", "sleep 0.1; kill -STOP $PPID; exit 5")
		holder.Stderr, holder.WaitDelay = &said, time.Second
		timer := time.AfterFunc(time.Minute, func() { _ = holder.Process.Kill() })
		defer timer.Stop()
		_ = holder.Run()
		if code := holder.ProcessState.ExitCode(); code != 5 {
			t.Errorf("exit status %d, want 5", code)
		}
		says(t, said.String(), "")
	})
}

// beats is the number of the latest request of a key's holder, if that has been answered.
func (b stage) beats(key string) int {
	id := lockOf(key)
	values, err := b.server.Query("postgres", fmt.Sprintf(`SELECT substring(query FROM 'beat=''([0-9]+)''') FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND classid = %d AND objid = %d AND granted AND state = 'idle'`, id.ClassID(), id.ObjID()))
	if err != nil || len(values) != 1 {
		return -1
	}
	n, _ := strconv.Atoi(values[0])
	return n
}

// stopped says that a process is stopped.
func stopped(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(rest, "T")
}

// loud are the messages in a log in JSON that are there without -v, a line each.
func loud(t *testing.T, log string) (messages string) {
	t.Helper()
	for line := range strings.Lines(log) {
		var m struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if m.Level == "WARN" || m.Level == "ERROR" {
			messages += m.Msg + "\n"
		}
	}
	return messages
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
			if !eventually(func() bool { return testbed.waiters(name) == 1 }) {
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
				if !eventually(func() bool { return testbed.holders(name) == 1 && testbed.waiters(name) == 0 }) {
					t.Fatal("it is not granted the lock")
				}
				_ = waiter.Process.Signal(syscall.SIGTERM)
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Fatal("it keeps the lock for nobody")
			}
			if code := shellStatus(waiter.ProcessState); code != tt.status {
				t.Errorf("status %d, want %d", code, tt.status)
			}
			says(t, said.String(), tt.says)
			if !dead(guard) {
				t.Error("the guard is left")
			}
			if n := testbed.holders(name); n != 0 {
				t.Error("the lock is not free")
			}
			if _, err := os.Stat(filepath.Join(waiter.Dir, "never")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the command was started: %v", err)
			}
		})
	}
}

// TestStoppedPgleadHoldsNothingUp: a command that is stopped again and again has
// its guard say so to a pglead that is stopped, too, until the socket is full. The
// guard kills at the deadline all the same, and a pglead that is woken hears of it.
func TestStoppedPgleadHoldsNothingUp(t *testing.T) {
	const lease = 9 * time.Second
	holder, said := command(t, "run", "--key", "stopped pglead", "--lease", "9s", "--", "sh", "-c", "echo $$; exec sleep 1000"), &lockedBuffer{}
	holder.Stderr = said
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
	if took, most := time.Since(stopped), leasetime.DeadAfter(lease, 0); took > most {
		t.Errorf("the command was dead %v after its pglead was stopped, more than %v", took, most)
	}
	_ = holder.Process.Signal(syscall.SIGCONT)
	_ = holder.Wait()
	if code := holder.ProcessState.ExitCode(); code != 76 {
		t.Errorf("status %d, want 76", code)
	}
	says(t, said.String(), `pglead: "stopped pglead": the lock in .* was lost .*; the command \(process \d+\) was killed\n`)
}

// TestStoppedPgleadLosesTheLock: who waits has the lock of a pglead that is stopped by
// the time at which that of a silent host is to be had, and the one that is woken says
// what has happened. Over TLS the guard can't say that the command is dead.
func TestStoppedPgleadLosesTheLock(t *testing.T) {
	const lease = 9 * time.Second
	encrypted, port, _ := testserver.StartTLS(t, "localhost")
	for name, at := range map[string]struct {
		server *localpg.Server
		dsn    string
		silent bool // the waiter knows it by the holder's silence
	}{
		"a socket": {testbed.server, testbed.server.DSN("postgres"), false},
		"TLS":      {encrypted, "host=127.0.0.1 sslmode=require user=pglead dbname=postgres port=" + port, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := func(args ...string) []string {
				return append([]string{"run", "--dsn", at.dsn, "--key", "stopped", "--lease", lease.String()}, args...)
			}
			holder, said := command(t, options("--", "sh", "-c", "echo on; exec sleep 1000")...), &lockedBuffer{}
			holder.Stderr = said
			start(t, holder)
			waiter, heard := command(t, options("-v", "--wait", "5m", "--", "true")...), &lockedBuffer{}
			waiter.Stderr = heard
			if err := waiter.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { return stage{server: at.server}.waiters("stopped") == 1 }) {
				t.Fatal("nobody waits")
			}
			_ = holder.Process.Signal(syscall.SIGSTOP)
			stopped := time.Now()
			if err := waiter.Wait(); err != nil {
				t.Errorf("%v: %s", err, heard.String())
			}
			if silent := strings.Contains(heard.String(), "the holder has been silent for as long as its command can live"); silent != at.silent {
				t.Errorf("by silence: %v, want %v: %s", silent, at.silent, heard.String())
			}
			if took, most := time.Since(stopped), leasetime.DeadAfter(lease, 0)+2*time.Second; took > most {
				t.Errorf("the next command came after %v, and not after %v at most", took, most)
			}
			t.Logf("the next command had the lock after %v", time.Since(stopped))
			_ = holder.Process.Signal(syscall.SIGCONT)
			says := regexp.MustCompile(`\Apglead: stopped: the lock in .* was lost \(last known held .* before\): .*; the command \(process \d+\) was killed\n\z`)
			if err := holder.Wait(); err == nil || holder.ProcessState.ExitCode() != 76 || !says.MatchString(said.String()) {
				t.Errorf("the one that was stopped: %v: %s", err, said.String())
			}
		})
	}
}
