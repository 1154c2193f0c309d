package lock_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/pglead/pglead/runner/ledger"
)

// TestLedgerQuorum has a ledger's rows be confirmed by a standby, which is promoted.
func TestLedgerQuorum(t *testing.T) {
	primary, dsn := remembering(t, map[string]string{"wal_receiver_status_interval": "100ms"})
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	query(t, primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	query(t, primary, "SELECT pg_reload_conf()")
	cfg := withQuorum(ledgered(config(t, dsn, exclusive(7))))
	for range 2 {
		release(t, ended(acquire(t, cfg), ledger.OK))
	}
	late := contend(t, cfg)
	held := late.held(t)
	if slices.Contains(late.said(), "delayed") {
		t.Error("waited after a clean end")
	}
	if err := primary.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-held.Lost()
	if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, standby); got != "nightly  t t f" {
		t.Errorf("the standby has the row %s", got)
	}
	after := contend(t, ledgered(config(t, as(t, standby, "cron"), exclusive(7))))
	eventually(t, "the first on the new primary waits", func() bool { return slices.Contains(after.said(), "delayed") })
}

// TestLedgerPromotion has a standby that lacks the last rows be promoted: what it says
// to have ended clean is of another timeline.
func TestLedgerPromotion(t *testing.T) {
	primary, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	release(t, acquire(t, cfg))
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	if err := primary.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	there := ledgered(config(t, as(t, standby, "cron"), exclusive(7)))
	there.Session.Private = false // so that its age counts
	after := contend(t, there)
	eventually(t, "the first on the new primary waits", func() bool { return slices.Contains(after.said(), "delayed") })
}
