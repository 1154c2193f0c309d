package main_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/pgtest"
)

// alone is the beginning of a shell command that says "overlap" if another of
// its kind is alive. The kernel's lock ends with the last of its processes,
// however that ends.
func alone(log string) string {
	return fmt.Sprintf("exec 9>>%[1]s; flock -n 9 || echo overlap >&9; ", log)
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// TestOldestWaiterGetsTheSlot: newcomers, of whom there is no end, don't
// overtake those who wait for a slot.
func TestOldestWaiterGetsTheSlot(t *testing.T) {
	const waiting = 6
	dir := t.TempDir()
	order := filepath.Join(dir, "order")
	begin := func(name, wait, script string) *exec.Cmd {
		cmd := command(t, "run", "--key", "line", "--slots", "2", "-q", "--wait", wait, "--", "sh", "-c", script, name)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	var holders []*exec.Cmd
	for i := range 2 {
		holders = append(holders, begin("holder", "0", fmt.Sprintf("until test -e %s/end%d; do sleep 0.01; done", dir, i)))
		if !eventually(func() bool { return theBench.locks(fmt.Sprintf("line@%d", i+1), "granted") == 1 }) {
			t.Fatal("a holder never starts")
		}
	}
	var waiters []*exec.Cmd
	const work = " >>%s; sleep 0.02"
	for i := range waiting {
		waiters = append(waiters, begin(fmt.Sprintf("waiter%d", i), "2m", fmt.Sprintf("echo $0"+work, order)))
		// The first has the gate, the others stand before it.
		if !eventually(func() bool { return theBench.locks("line@0", "true") == i+1 }) {
			t.Fatal("a waiter doesn't stand in line")
		}
	}
	stop := make(chan struct{})
	var newcomers sync.WaitGroup
	for range 3 {
		newcomers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = begin("newcomer", "1s", fmt.Sprintf("echo $0"+work, order)).Wait() // 0 or 75
				}
			}
		})
	}
	if !eventually(func() bool { return theBench.locks("line@0", "true") > waiting }) {
		t.Fatal("no newcomer")
	}
	finish := func(holder int) {
		if err := os.WriteFile(fmt.Sprintf("%s/end%d", dir, holder), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	finish(0)
	for i, w := range waiters {
		if err := w.Wait(); err != nil {
			t.Errorf("waiter %d: %v", i, err)
		}
	}
	close(stop)
	newcomers.Wait()
	finish(1)
	for _, h := range holders {
		_ = h.Wait()
	}
	served := lines(t, order)
	for i := range waiting {
		if want := fmt.Sprintf("waiter%d", i); len(served) <= i || served[i] != want {
			t.Fatalf("served in the order %v", served[:min(len(served), waiting+3)])
		}
	}
}

// TestHerd: many more wait through a pooler than it has connections to the
// server, and more than it lets in. HERD=1000 go test -run Herd -v . is the
// large one.
func TestHerd(t *testing.T) {
	processes, connections, clients := 60, 5, 50
	if n, err := strconv.Atoi(os.Getenv("HERD")); err == nil {
		processes, connections, clients = n, 20, 3000
	}
	dsn, stop, err := theBench.server.Pooler(pgtest.Superuser, map[string]string{
		"pool_mode": "transaction", "default_pool_size": strconv.Itoa(connections),
		"max_client_conn": strconv.Itoa(clients), "query_wait_timeout": "5",
	})
	if err != nil {
		if os.Getenv("CI") == "" {
			t.Skip("NOT TESTED: poolers:", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(stop)
	log := filepath.Join(t.TempDir(), "log")
	began := time.Now()
	var ended sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	var used time.Duration
	for range processes {
		cmd := command(t, "run", "--dsn", dsn, "--transaction", "--key", "herd", "--wait", "10m", "--lease", "60s", "--lock-delay", "0", "--",
			"sh", "-c", alone(log)+"echo $PGLEAD_TOKEN >&9")
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended.Go(func() {
			_ = cmd.Wait()
			mu.Lock()
			defer mu.Unlock()
			statuses[cmd.ProcessState.ExitCode()]++
			used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			if !cmd.ProcessState.Success() {
				t.Errorf("%v: %s", cmd.ProcessState, &said)
			}
		})
	}
	started := time.Since(began)
	ended.Wait()
	t.Logf("%d processes, all started after %v, all ended after %v, %v of processor time; exit statuses %v",
		processes, started.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), used.Round(time.Millisecond), statuses)
	tokens := lines(t, log)
	if len(tokens) != processes {
		t.Errorf("%d lines of %d processes", len(tokens), processes)
	}
	last := 0
	for _, line := range tokens {
		token, err := strconv.Atoi(line)
		if err != nil || token <= last {
			t.Errorf("%q after token %d", line, last)
		}
		last = token
	}
	if theBench.locks("herd", "true") != 0 {
		t.Error("the lock is not free at the end")
	}
}

// candidate is a node that stands for election.
type candidate struct {
	*exec.Cmd
	said *lockedBuffer
}

// lockedBuffer can be read while a process writes.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func lead(t *testing.T, dsn string, args ...string) candidate {
	t.Helper()
	cmd := command(t, append([]string{"lead", "--dsn", dsn, "--key", "lead", "--first-delay", "0", "--lease", "3s", "-v"}, args...)...)
	c := candidate{cmd, &lockedBuffer{}}
	cmd.Stderr = c.said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return c
}

// TestLead: of two nodes one leads, through a kill, an outage and a step-down.
func TestLead(t *testing.T) {
	server, remove, err := pgtest.Throwaway(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	dsn, log := server.DSN("postgres"), filepath.Join(t.TempDir(), "log")
	node := func(name string) candidate {
		return lead(t, dsn, "--", "sh", "-c", alone(log)+"echo "+name+" >&9; exec sleep 98763")
	}
	last := func() string {
		all := lines(t, log)
		return all[len(all)-1]
	}
	leads := func(who string) {
		t.Helper()
		if !eventually(func() bool { return last() == who }) {
			t.Fatalf("%s never leads: %v", who, lines(t, log))
		}
	}
	stands := func() {
		t.Helper()
		if !eventually(func() bool {
			n, err := server.Query("postgres", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
			return err == nil && n[0] == "1"
		}) {
			t.Fatal("nobody stands by")
		}
	}
	a := node("a")
	leads("a")
	b := node("b")
	stands()
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	leads("b")

	c := node("c")
	stands()
	terms := len(lines(t, log))
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for _, node := range []candidate{b, c} {
		// A third attempt is after seconds.
		if !eventually(func() bool { return strings.Count(node.said.String(), "waiting for the database") >= 3 }) {
			t.Fatalf("not ridden out: %s", node.said)
		}
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return len(lines(t, log)) > terms }) {
		t.Fatal("after the outage nobody leads")
	}
	stands()
	leader, successor, name := b, c, "c"
	if last() == "c" {
		leader, successor, name = c, b, "b"
	}
	if err := leader.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = leader.Wait()
	if status := leader.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("the leader that was told to step down: %v", leader.ProcessState)
	}
	leads(name)
	if err := successor.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = successor.Wait()
	if slices.Contains(lines(t, log), "overlap") {
		t.Errorf("two led at once: %v", lines(t, log))
	}
}

// TestLeadBeforeTheDatabase: a node that is up before its database waits for
// it, and one that will never be let in doesn't.
func TestLeadBeforeTheDatabase(t *testing.T) {
	server, remove, err := pgtest.Throwaway(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	early := lead(t, server.DSN("postgres"), "--restart", "never", "--", "sh", "-c", "exit 9")
	denied := lead(t, strings.Replace(server.DSN("postgres"), pgtest.Superuser, "nobody", 1), "--", "true")
	for _, node := range []candidate{early, denied} {
		if !eventually(func() bool { return strings.Count(node.said.String(), "waiting for the database") >= 2 }) {
			t.Fatalf("not ridden out: %s", node.said)
		}
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	_, _ = early.Wait(), denied.Wait()
	if status := early.ProcessState.ExitCode(); status != 9 {
		t.Errorf("the command's status is 9, its leader's %d: %s", status, early.said)
	}
	if status := denied.ProcessState.ExitCode(); status != 77 {
		t.Errorf("the status of a refused login is %d: %s", status, denied.said)
	}

	// Who has led before rides that out too.
	execute := func(sql string) {
		t.Helper()
		if _, err := server.Query("postgres", sql); err != nil {
			t.Fatal(err)
		}
	}
	execute("CREATE ROLE node LOGIN")
	known := lead(t, strings.Replace(server.DSN("postgres"), pgtest.Superuser, "node", 1), "--", "sh", "-c", "echo led >&2; exec sleep 98762")
	leads := func(times int) {
		t.Helper()
		if !eventually(func() bool { return strings.Count(known.said.String(), "led\n") == times }) {
			t.Fatalf("does not lead %d times: %s", times, known.said)
		}
	}
	leads(1)
	execute("ALTER ROLE node NOLOGIN; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%'")
	if !eventually(func() bool { return strings.Contains(known.said.String(), "is not permitted to log in") }) {
		t.Fatalf("not refused: %s", known.said)
	}
	execute("ALTER ROLE node LOGIN")
	leads(2)
}
