package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestStandbyIsRefused(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	primary := throwaway(t, nil)
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	status, stderr := outcome(t, "run", "--dsn", standby.DSN("postgres"), "--key", "k", "--", "true")
	if status != 78 || !strings.Contains(stderr, "is a standby") || !strings.Contains(stderr, "hint: connect to the primary") {
		t.Errorf("status %d, %s", status, stderr)
	}

	// A waiter waits for the promotion.
	waiter := command(t, "run", "-v", "--dsn", standby.DSN("postgres"), "--key", "k", "--wait", "2m", "--", "true")
	told, err := waiter.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := waiter.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(told).ReadString('\n')
	if err != nil || !strings.Contains(line, "standby") {
		t.Errorf("the waiter says %q, %v", line, err)
	}
	if err := standby.Run("pg_ctl", "promote", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, told)
	if err := waiter.Wait(); err != nil {
		t.Errorf("after the promotion: %v", err)
	}
}

// TestServerRestart: the holder loses, the waiter rides it out.
func TestServerRestart(t *testing.T) {
	t.Parallel() // it has a server of its own
	for _, mode := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		t.Run(mode.String(), func(t *testing.T) {
			server := throwaway(t, nil)
			dsn := server.DSN("postgres")
			dir := t.TempDir()
			started := filepath.Join(dir, "started")
			holder := command(t, "run", "--dsn", dsn, "--key", "k", "--lease", "3s", "--", "sh", "-c", "touch "+started+"; sleep 98768")
			var said bytes.Buffer
			holder.Stderr = &said
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { _, err := os.Stat(started); return err == nil }) {
				t.Fatal("the holder never starts")
			}
			waiter := command(t, "run", "--dsn", dsn, "--key", "k", "--lease", "3s", "--wait", "2m", "--", "true")
			if err := waiter.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool {
				return stage{server: server}.waiters("k") == 1
			}) {
				t.Fatal("the waiter never waits")
			}
			if err := server.Stop(mode); err != nil {
				t.Fatal(err)
			}
			if err := holder.Wait(); holder.ProcessState.ExitCode() != 76 {
				t.Errorf("the holder: %v: %s", err, &said)
			}
			// It says so before it has tried for a lock-delay to tell those who wait.
			says(t, said.String(), `pglead: k: the database is away: report the end of the run: .*\n(pglead: hint: .*\n|pglead: k: the database is still away: report the end of the run: .*\n)*pglead: k: the lock in .* was lost .*\n`)
			if err := server.StartLogged(); err != nil {
				t.Fatal(err)
			}
			if err := waiter.Wait(); err != nil {
				t.Errorf("the waiter: %v", err)
			}
		})
	}
}

// TestReasonOfSilence: where the server falls silent it is not pglead that was
// stopped, whoever notices first.
func TestReasonOfSilence(t *testing.T) {
	t.Parallel() // it has a server of its own
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

// TestSilentServer: a command that looks ends although the server, or what is in between, has fallen
// silent after the login.
func TestSilentServer(t *testing.T) {
	t.Parallel() // it waits for half a minute
	racesNothing(t)
	p := newProxy(t, time.Hour)
	p.questions.Store(1) // that of the login
	looks := map[string]candidate{}
	for _, args := range []string{
		"check k --within 1d", "who k", "ls", "history", "history k", "stepdown k", "pause k", "resume k", "pause k*",
		"ledger status", "ledger prune", "ledger install", "ledger uninstall --yes",
	} {
		looks[args] = launch(t, append(strings.Fields(args), "--dsn", p.dsn)...)
	}
	for args, look := range looks {
		if status := look.ends(); status != 69 {
			t.Errorf("%s: exit status %d", args, status)
		}
		says(t, look.said.String(), `pglead: ask 127\.0\.0\.1:\d+/postgres: no answer within 30s\n`+
			`pglead: hint: the server hangs, or something on the way to it; a longer --connect-timeout waits longer\n`)
	}
}
