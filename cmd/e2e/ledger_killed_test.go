package e2e

import (
	"fmt"
	"path/filepath"
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
