package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestLedgerGone: the ledger is lost while runs wait for the end of its open run, or of a pause.
// They go on without it, but not before the open run's command is dead; those that require it
// don't. In a transaction an error frees the lock, and the run begins again.
func TestLedgerGone(t *testing.T) {
	t.Parallel()
	for name, loss := range map[string]string{"revoked": "REVOKE USAGE ON SCHEMA pglead FROM cron", "dropped": "DROP SCHEMA pglead CASCADE"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, dsn := remembering(t, nil)
			of := func(number int64) lock.Config {
				cfg := ledgered(config(t, dsn, exclusive(number)))
				cfg.LockDelay = time.Second // the lost run's own settings ask for more
				if number > 3 {
					cfg.Claim.Keys = []string{"paused"}
				}
				return cfg
			}
			requiring := func(cfg lock.Config) lock.Config {
				cfg.Ledger.Mode = ledger.Require
				return cfg
			}
			throughPooler := inTransaction(of(3))
			throughPooler.Session.Database = config(t, pooled(t, server, "cron", "transaction", 5), exclusive(3)).Session.Database
			for number := range int64(3) {
				tear(t, server, acquire(t, of(number+1)))
			}
			query(t, server, "SELECT pglead.pause_1(n, 1::smallint, 'paused', 'infinity', 'ann', NULL) FROM unnest('{4,5}'::bigint[]) AS n")
			began := time.Now()
			after, paused, again := contend(t, of(1)), contend(t, of(4)), contend(t, throughPooler)
			requires := []*contender{contend(t, requiring(of(2))), contend(t, requiring(of(5)))}
			eventually(t, "all wait", func() bool {
				return !slices.ContainsFunc(append(requires, after, paused, again), func(c *contender) bool {
					return !slices.Contains(c.said(), "delayed") && !slices.Contains(c.said(), "paused")
				})
			})
			query(t, server, loss)
			for _, c := range []*contender{after, paused} {
				release(t, c.held(t))
				if !slices.Contains(c.said(), "ledger") {
					t.Errorf("it does not say that the ledger is gone: %v", c.said())
				}
			}
			if took := after.ended.Sub(began); took < leasetime.DeadAfter(lease, 0) {
				t.Errorf("started %v after an end that nobody saw", took)
			}
			release(t, again.held(t))
			for _, c := range requires {
				<-c.done
				if kindOf(c.err) != session.Denied || !strings.HasPrefix(c.err.Error(), "--ledger require needs ") {
					t.Errorf("what has to be remembered: %v", c.err)
				}
			}
		})
	}
}

// TestLedgerGoneUnsure: the ledger is dropped just before a start that comes back to the lock, and
// has heard nothing. Its open runs are not all that may be alive, so the start waits as without a
// ledger.
func TestLedgerGoneUnsure(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	delays := 0
	cfg.Observer.Delayed = func(until time.Time) {
		if !until.IsZero() {
			delays++
		}
		cancel()
	}
	returning := lock.NewBid(open(t, cfg), cfg, true)
	if !try(t, returning) {
		t.Fatal("the lock is not free")
	}
	query(t, server, "DROP SCHEMA pglead CASCADE")
	if _, err := returning.Settle(ctx); !errors.Is(err, context.Canceled) || delays != 1 {
		t.Errorf("%d delays, and then %v", delays, err)
	}
}

// TestLedgerGoneInList: once an item of a list that requires the ledger has found that it is gone,
// no other item starts without it.
func TestLedgerGoneInList(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	cfg.Ledger.Mode = ledger.Require
	l := openList(t, cfg)
	query(t, server, "REVOKE USAGE ON SCHEMA pglead FROM cron")
	for number := range int64(3) {
		a := takeItem(t, l, cfg, 7+number, false)
		if _, err := a.Settle(t.Context()); kindOf(err) != session.Denied || !strings.HasPrefix(err.Error(), "--ledger require needs ") {
			t.Errorf("item %d: %v", number, err)
		}
		a.Close()
	}
	if n := query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0]; n != "0" {
		t.Errorf("%s locks are kept", n)
	}
}

// TestGiveBackBehindPooler: a lock is given back though its run has started in the ledger. The
// session goes on, and others on its list with it.
func TestGiveBackBehindPooler(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	b := bid(t, inTransaction(ledgered(config(t, dsn, exclusive(7)))))
	if !try(t, b) {
		t.Fatal("a free lock is refused")
	}
	if _, err := b.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	giveBack(t, b)
	if got := rows(t, server); got != "nightly stopped f t f" {
		t.Errorf("the row: %s", got)
	}
	if err := b.Lost(); err != nil {
		t.Errorf("the session was lost: %v", err)
	}
}
