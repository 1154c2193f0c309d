package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestKilledInLedger: after SIGKILL of pglead its guard notes the end in the ledger, in every way of
// holding a lock, and a first try then starts at once.
func TestKilledInLedger(t *testing.T) {
	t.Parallel() // it has a server of its own
	primary, _ := cluster(t, "*", "a")
	server := stage{server: primary}
	if status, stderr := outcome(t, "ledger", "install", "--dsn", primary.DSN("postgres")); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	for name, flags := range map[string][]string{
		"alone": nil, "shared": {"--shared"}, "slots": {"--slots", "2"}, "several": {"--key", "another"},
		"transaction": {"--transaction"}, "pooler": {"--transaction"}, "once": {"--once-per", "day"},
		"quorum": {"--quorum"}, "quorum once": {"--quorum", "--once-per", "day"}, "quorum shared": {"--quorum", "--shared"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"run", "--dsn", primary.DSN("postgres"), "--key", name, "--lease", "1h", "--lock-delay", "0"}, flags...)
			if name == "pooler" {
				args = append(args, "--dsn", testserver.Pooled(t, primary, localpg.Superuser, "transaction", 5))
			}
			started := filepath.Join(t.TempDir(), "started")
			killed := launch(t, append(args, "--", "sh", "-c", "touch "+started+"; exec sleep 98767")...)
			if !eventually(func() bool { return exists(started) }) {
				t.Fatalf("never starts: %s", killed.said)
			}
			_ = killed.Process.Kill()
			killed.ends()
			runs := fmt.Sprintf("SELECT string_agg(outcome, ' ' ORDER BY started) FROM pglead.run WHERE key = '%s'", name)
			if !eventually(func() bool { return server.locks("true") == 0 }) || ask(t, primary, runs)[0] != "killed" {
				t.Fatalf("its end is noted as %q", ask(t, primary, runs)[0])
			}
			if status, stderr := outcome(t, append(args, "--", "true")...); status != 0 || stderr != "" {
				t.Errorf("the next run: status %d: %s", status, stderr)
			}
			if got := ask(t, primary, runs)[0]; got != "killed ok" {
				t.Errorf("runs: %s", got)
			}
		})
	}
}

// TestLostWhileNoted: the note of the end in the ledger hangs, and when --min-hold is over, the
// session is lost. The log says so, once.
func TestLostWhileNoted(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	if status, stderr := outcome(t, "ledger", "install", "--dsn", server.DSN("postgres")); status != 0 {
		t.Fatalf("status %d: %s", status, stderr)
	}
	whole := ask(t, server, "SELECT pg_get_functiondef('pglead.finish_1'::regproc)")[0]
	head, _, _ := strings.Cut(whole, "AS $function$")
	ask(t, server, head+"AS 'SELECT 1::bigint FROM pg_sleep(600)'")
	holder := launch(t, "run", "--dsn", server.DSN("postgres"), "--key", "noted", "--lease", "1h", "--lock-delay", "0", "--min-hold", "1s", "--", "true")
	if !eventually(func() bool {
		return ask(t, server, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%finish_1%' AND wait_event = 'PgSleep' AND now() - query_start > '1 s'")[0] == "1"
	}) {
		t.Fatalf("the note does not hang: %s", holder.said)
	}
	ask(t, server, whole)
	ask(t, server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
	status := holder.ends()
	const want = "pglead: noted: the lock was lost after the command's end: the server ended the session: terminating connection due to administrator command (57P01)\n"
	if said := holder.said.String(); status != 0 || said != want {
		t.Errorf("status %d: %s", status, said)
	}
	if got := ask(t, server, "SELECT outcome FROM pglead.lock")[0]; got != "ok" {
		t.Errorf("the ledger says %q", got)
	}
}
