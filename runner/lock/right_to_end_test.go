package lock_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/lock"
)

// TestRightToEndRevoked: on a server on which nobody may call pg_terminate_backend, waiters take
// over from a silent holder, come back after a loss, and hear of a command that is dead, as
// elsewhere.
func TestRightToEndRevoked(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	query(t, server, "REVOKE EXECUTE ON FUNCTION pg_terminate_backend(integer, bigint) FROM PUBLIC")
	dsn := as(t, server, "cron")
	t.Run("silence", func(t *testing.T) {
		cfg := config(t, dsn, exclusive(1))
		cfg.LockDelay = time.Second
		_, next, _ := silenced(t, server, cfg, cfg)
		next.held(t)
		const left = "the holder has been silent for as long as its command can live: its session, which this role may not end, is left to the server"
		if events := next.said(); !slices.Equal(events, []string{"waiting", "silent"}) || next.texts[1] != left {
			t.Errorf("it said %v: %q", events, next.texts)
		}
	})
	t.Run("a lost place", func(t *testing.T) {
		h := acquire(t, config(t, dsn, exclusive(2)))
		waiter := contend(t, config(t, dsn, exclusive(2)))
		inLine(t, server, id(2), 1)
		query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE classid = %d AND objsubid = 1", advisory.TicketClass(id(2))))
		eventually(t, "it is gone", func() bool { return len(waiter.said()) > 1 })
		inLine(t, server, id(2), 1)
		release(t, h)
		waiter.held(t)
	})
	t.Run("a death", func(t *testing.T) {
		holder := contend(t, config(t, dsn, exclusive(3)))
		h := holder.held(t)
		waiter := contend(t, config(t, dsn, exclusive(3)))
		inLine(t, server, id(3), 1)
		tear(t, server, h)
		lock.ReportLost(t.Context(), h)
		waiter.held(t)
		if said := holder.said(); len(said) > 0 {
			t.Errorf("the holder said %q", holder.texts)
		}
	})
}
