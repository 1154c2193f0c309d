package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestGoodbye: no end of a run looks to the server like a client that was lost.
func TestGoodbye(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	count := func(column string) string {
		rows, err := server.Query("postgres", "SELECT "+column+" FROM pg_stat_database WHERE datname = 'goodbye'")
		if err != nil {
			t.Fatal(err)
		}
		return rows[0]
	}
	if _, err := server.Query("postgres", "CREATE DATABASE goodbye"); err != nil {
		t.Fatal(err)
	}
	dsn := server.DSN("goodbye")
	run := func(want int, args ...string) {
		t.Helper()
		cmd := command(t, append([]string{"run", "--dsn", dsn, "--key", "goodbye"}, args...)...)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%q: exit status %d, want %d: %s", args, got, want, out)
		}
	}
	run(0, "--", "true")
	run(3, "--", "sh", "-c", "exit 3")
	run(0, "--transaction", "--", "true") // has two sessions
	run(0, "--on-released", "true", "--", "true")
	nested := filepath.Join(testbed.dir, "pglead") + " run --dsn '" + dsn + "' --key goodbye"
	run(75, "--", "sh", "-c", nested+" -- true")
	run(75, "--", "sh", "-c", nested+" -q -- true")
	run(75, "--", "sh", "-c", nested+" -w 0.1 -- true")
	if !eventually(func() bool { return count("sessions") == "11" }) {
		t.Errorf("%s sessions, want 11", count("sessions"))
	}
	if n := count("sessions_abandoned"); n != "0" {
		t.Errorf("%s sessions seem to have lost their client", n)
	}
}

// TestGoodbyeInLine: those in a line leave it without a trace in the server's log, although
// the server tells each of them about the others until the last moment.
func TestGoodbyeInLine(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	for round := range 4 {
		var line []candidate
		for range 30 {
			line = append(line, launch(t, "run", "--dsn", server.DSN("postgres"), "--key", "goodbye/"+strconv.Itoa(round), "--lock-delay", "0", "--wait", "1m", "--", "true"))
		}
		for _, c := range line {
			if status := c.ends(); status != 0 || c.said.String() != "" {
				t.Errorf("exit status %d: %s", status, c.said)
			}
		}
	}
	log, err := os.ReadFile(server.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "ready to accept connections") {
		t.Fatalf("the server's log: %s", log)
	}
	// On a busy machine one that was just refused may need longer than a holder waits for it.
	late := regexp.MustCompile(`.* ERROR:  canceling statement due to lock timeout\n.* STATEMENT:  .*set_config\('lock_timeout', '200ms', true\), pg_catalog\.pg_advisory_xact_lock.*\n`)
	for line := range strings.Lines(late.ReplaceAllString(string(log), "")) {
		if strings.Contains(line, "client") || strings.Contains(line, "FATAL") || strings.Contains(line, "ERROR") {
			t.Errorf("the server says: %s", line)
		}
	}
}

// TestGoodbyeToPooler: whatever way a run ends, nobody says that a session was
// lost, and the pooler need not close a connection to its server for it.
func TestGoodbyeToPooler(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	dsn, stop := testserver.Pooler(t, server, localpg.Superuser, map[string]string{"pool_mode": "transaction", "default_pool_size": "4"})
	const held = `^pglead: goodbye: the lock in .* is held elsewhere: by .*$`
	run := func(want int, said string, args ...string) {
		t.Helper()
		status, stderr := outcome(t, args...)
		if status != want || strings.Count(stderr, "\n") > strings.Count(said, "\n")+1 || !regexp.MustCompile(said).MatchString(strings.TrimSpace(stderr)) {
			t.Errorf("%q: status %d, want %d; it says %q", args, status, want, stderr)
		}
	}
	through := func(verb string, more ...string) []string {
		return append([]string{verb, "--transaction", "--dsn", dsn, "--key", "goodbye", "--lock-delay", "0"}, more...)
	}
	nested := func(more string) string {
		return filepath.Join(testbed.dir, "pglead") + " run --transaction --dsn '" + dsn + "' --key goodbye " + more
	}
	items := filepath.Join(t.TempDir(), "items")
	if err := os.WriteFile(items, []byte("a\nb\nc\nd\ne\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		run(0, `^$`, through("run", "--", "true")...)
	}
	run(3, `^$`, through("run", "--", "sh", "-c", "exit 3")...)
	run(0, "^pglead: goodbye: lock acquired\npglead: goodbye: lock released$", through("lead", "--first-delay", "0", "--restart", "never", "--", "true")...)
	run(0, `^$`, "each", "--transaction", "--dsn", dsn, "--key", "goodbye/{}", "--lock-delay", "0", "-P", "2", "-a", items, "--", "true")
	run(75, held, through("run", "--", "sh", "-c", nested("-- true"))...)
	run(75, `^$`, through("run", "--", "sh", "-c", nested("-q -- true"))...)
	run(75, "^pglead: goodbye: the pglead under which this one runs has .*\npglead: goodbye: .*held elsewhere for all of.*$", through("run", "--", "sh", "-c", nested("-w 0.1 -- true"))...)
	run(78, "there is a connection pooler in between.*\npglead: hint: connect to PostgreSQL itself", "run", "-q", "--dsn", dsn, "--key", "goodbye", "--", "true")

	holder := connected(t, server, "SELECT pg_advisory_lock(7)")
	before := strings.Count(poolerLog(t, server), "login attempt")
	waiter := launch(t, "run", "-v", "--transaction", "--dsn", dsn, "--key-scheme", "int", "--key", "7", "--wait", "1m", "--", "true")
	if !eventually(func() bool { return strings.Contains(waiter.said.String(), "waiting for the lock") }) {
		t.Fatalf("never waits: %s", waiter.said)
	}
	// A login can't be broken off with a goodbye, and a wait takes a second session, which asks
	// nothing yet. Two tries later it is logged in.
	if !eventually(func() bool { return strings.Count(poolerLog(t, server), "login attempt") == before+2 }) {
		t.Fatalf("no second session: %s", waiter.said)
	}
	tried := ""
	for range 3 { // the first one seen may be older than the login
		latest := tried
		if !eventually(func() bool {
			rows, err := server.Query("postgres", "SELECT query_start FROM pg_stat_activity WHERE query LIKE '%key=''7''%pg_try_advisory_xact_lock(7)%' AND pid <> pg_backend_pid()")
			if err != nil {
				t.Fatal(err)
			}
			latest = strings.Join(rows, "")
			return latest != "" && latest != tried
		}) {
			t.Fatalf("tries no more: %s", waiter.said)
		}
		tried = latest
	}
	_ = waiter.Process.Signal(syscall.SIGTERM)
	waiter.ends()
	_ = holder.Close(t.Context())

	stop() // so that all of the log is there
	log := poolerLog(t, server)
	if !strings.Contains(log, "client close request") {
		t.Fatalf("the pooler's log: %s", log)
	}
	for line := range strings.Lines(log) {
		for _, trouble := range []string{"while server", "unexpected eof", "not ready", "unclean"} {
			if strings.Contains(line, trouble) {
				t.Errorf("the pooler says: %s", line)
			}
		}
	}
}

// poolerLog is what the only pooler of a server has written so far.
func poolerLog(t *testing.T, server *localpg.Server) string {
	t.Helper()
	logs, _ := filepath.Glob(filepath.Join(filepath.Dir(server.Data), "pooler*", "log"))
	if len(logs) != 1 {
		t.Fatalf("the pooler's logs: %q", logs)
	}
	log, err := os.ReadFile(logs[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(log)
}
