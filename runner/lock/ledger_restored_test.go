package lock_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
)

// TestRestoredUnderWaiter: the server comes back as a copy of before the holder's start, whose
// ledger calls the run before that the last, and ended. A waiter that has seen the holder waits as
// without a ledger.
func TestRestoredUnderWaiter(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	cfg.LockDelay = 2 * time.Second
	release(t, ended(acquire(t, cfg), ledger.OK))
	query(t, server, "CREATE TABLE copy AS TABLE pglead.lock")
	acquire(t, cfg)
	waiter := contend(t, cfg)
	inLine(t, server, id(7), 1)
	query(t, server, "ALTER ROLE cron CONNECTION LIMIT 0")
	query(t, server, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'cron'")
	query(t, server, "DELETE FROM pglead.lock; INSERT INTO pglead.lock TABLE copy")
	back := time.Now()
	query(t, server, "ALTER ROLE cron CONNECTION LIMIT -1")
	next := waiter.held(t)
	if took := waiter.ended.Sub(back); took < cfg.LockDelay || !slices.Contains(waiter.said(), "delayed") {
		t.Errorf("it may start %v after the server has come back, without evidence: %v", took, waiter.said())
	}
	release(t, next)
}

// TestCrashUnderWaiter: after a crash a waiter for which the ledger has the ends of the runs that it
// has seen does not wait for them, also if it may have any of several slots.
func TestCrashUnderWaiter(t *testing.T) {
	t.Parallel()
	for name, claim := range map[string]lock.Claim{"one lock": exclusive(7), "slots": slots(7, 2)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, dsn := remembering(t, nil)
			cfg := ledgered(config(t, dsn, claim))
			for range claim.IDs {
				acquire(t, cfg)
			}
			line := claim.IDs[0]
			if claim.Gate != nil {
				line = *claim.Gate
			}
			waiter := contend(t, cfg)
			inLine(t, server, line, 1)
			query(t, server, "ALTER ROLE cron CONNECTION LIMIT 0")
			query(t, server, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = 'cron'")
			query(t, server, "UPDATE pglead.lock SET ended = now(), outcome = 'lost' WHERE started IS NOT NULL") // as their survivors note it
			query(t, server, "ALTER ROLE cron CONNECTION LIMIT -1")
			release(t, waiter.held(t))
			if delayed(waiter) {
				t.Errorf("it has waited for a run whose end the ledger has: %v", waiter.said())
			}
		})
	}
}
