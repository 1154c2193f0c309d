package lock_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/ledger"
)

// TestRestoredUnderWaiter: the server comes back as a copy of before the holder's start, whose
// ledger calls the run before that the last, and ended. A waiter that has seen the holder waits as
// without a ledger, also if it was dormant.
func TestRestoredUnderWaiter(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]int{"in line": 0, "dormant": crowd.MostListeners} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, dsn := remembering(t, map[string]string{"max_connections": "200"})
			cfg := ledgered(config(t, dsn, exclusive(7)))
			cfg.LockDelay = 2 * time.Second
			release(t, ended(acquire(t, cfg), ledger.OK))
			query(t, server, "CREATE TABLE copy AS TABLE pglead.lock")
			acquire(t, cfg)
			for i := range ahead {
				frozenTicket(t, dsn, id(7), i)
			}
			waiter := contend(t, cfg)
			asks := "EXECUTE pglead"
			if ahead > 0 {
				asks = fmt.Sprintf("pg_try_advisory_xact_lock(%d)", advisory.CallOf(id(7)).Number)
			}
			eventually(t, "it has looked, and watches, or is dormant", func() bool {
				return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%' AND query LIKE '%"+asks+"%'")[0] == "1"
			})
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
		})
	}
}
