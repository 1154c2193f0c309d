package lock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// bid makes a bid on a session of its own.
func bid(t *testing.T, cfg lock.Config) *lock.Bid {
	t.Helper()
	return lock.NewBid(open(t, cfg), cfg, false)
}

// openOnly opens a session without a heartbeat.
func openOnly(t *testing.T, cfg lock.Config) *session.Session {
	t.Helper()
	s, err := session.Open(t.Context(), cfg.Session)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func open(t *testing.T, cfg lock.Config) *session.Session {
	t.Helper()
	s, err := lock.OpenSession(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.StartHeartbeat()
	return s
}

func try(t *testing.T, b *lock.Bid) bool {
	t.Helper()
	granted, err := b.Try(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return granted
}

func giveBack(t *testing.T, b *lock.Bid) {
	t.Helper()
	if err := b.GiveBack(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func settle(t *testing.T, b *lock.Bid) *lock.Held {
	t.Helper()
	h, err := b.Settle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func inTransaction(cfg lock.Config) lock.Config {
	cfg.Session.Transaction = true
	return cfg
}

// TestConflicts: a shared lock keeps out only exclusive ones, in whatever way either is held and
// however the lock is numbered.
func TestConflicts(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	for _, lockID := range []lockkey.ID{id(-7), pairID(-1, 7)} {
		for mode := range 4 {
			for _, holderShares := range []bool{false, true} {
				for _, otherShares := range []bool{false, true} {
					of := func(shares, transaction bool) *lock.Bid {
						cfg := config(t, dsn, lock.Claim{IDs: []lockkey.ID{lockID}, Shared: shares})
						if transaction {
							cfg = inTransaction(cfg)
						}
						return bid(t, cfg)
					}
					holds, asks := mode&1 != 0, mode&2 != 0 // in a transaction
					held, asked := of(holderShares, holds), of(otherShares, asks)
					name := fmt.Sprintf("lock %s, held in a transaction %v (shared %v), asked for in one %v (shared %v)", lockID, holds, holderShares, asks, otherShares)
					if !try(t, held) {
						t.Fatalf("%s: not free", name)
					}
					h := settle(t, held)
					want := holderShares && otherShares
					if got := try(t, asked); got != want {
						t.Errorf("%s: %v", name, got)
					}
					release(t, h)
					if !want && !try(t, asked) {
						t.Errorf("%s: still held after its release", name)
					}
					giveBack(t, asked)
					if n := advisoryLocks(t, server); n != "0" {
						t.Fatalf("%s: %s locks stay", name, n)
					}
				}
			}
		}
	}
}

// TestPairIsAnotherLock: the same 64 bits are two locks, one as a bigint and one as a pair, and each has a line
// of its own.
func TestPairIsAnotherLock(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	pair := lock.Claim{IDs: []lockkey.ID{pairID(-1, 7)}}
	if !try(t, bid(t, config(t, dsn, exclusive(pairID(-1, 7).Number)))) {
		t.Fatal("the bigint is not free")
	}
	h := acquire(t, config(t, dsn, pair))
	if got := query(t, server, "SELECT pg_try_advisory_lock(-1, 7), pg_try_advisory_lock(7, -1)"); got[0] != "f" || got[1] != "t" {
		t.Errorf("plain SQL is granted (-1, 7) and (7, -1): %v", got)
	}
	next := contend(t, config(t, dsn, pair))
	inLine(t, server, pairID(-1, 7), 1)
	release(t, h)
	next.held(t)
	if delayed(next) {
		t.Errorf("after a clean end: %v", next.said())
	}
}

// TestNoWait: a run that doesn't wait says who has the lock, and leaves nothing behind.
func TestNoWait(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	h := acquire(t, cfg)
	cfg.Wait = 0
	c := contend(t, cfg)
	<-c.done
	refused, ok := c.err.(*lock.ConflictError) //nolint:errorlint // as it is
	if !ok || len(refused.Holders) != 1 || refused.Holders[0].Backend != h.Session.BackendPID() {
		t.Errorf("%#v", c.err)
	}
	eventually(t, "only the holder is there", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%'")[0] == "1"
	})
	if n := advisoryLocks(t, server); n != "1" {
		t.Errorf("%s locks", n)
	}
	release(t, h)
	acquire(t, cfg)
}

// TestHolderBeforeQueue: a look shows the holder, even if any number of another program's sessions
// wait for the lock in the server's own queue.
func TestHolderBeforeQueue(t *testing.T) {
	server := start(t, nil)
	queue := make([]*pgconn.PgConn, 75) // more than a look lists, with smaller PIDs than the holder's
	for i := range queue {
		queue[i] = plain(t, server.DSN("postgres"))
	}
	holder := plain(t, server.DSN("postgres"), "SELECT pg_advisory_lock(7)")
	var waiting sync.WaitGroup
	defer waiting.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, conn := range queue {
		waiting.Go(func() { _ = conn.Exec(ctx, "SELECT pg_advisory_lock(7)").Close() })
	}
	eventually(t, "all wait", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")[0] == fmt.Sprint(len(queue))
	})
	rows, err := openOnly(t, config(t, server.DSN("postgres"), exclusive(7))).Query(t.Context(), evidence.LookQuery([]lockkey.ID{id(7)}, id(7), 24))
	if err != nil {
		t.Fatal(err)
	}
	var look evidence.Look
	if ok := look.Parse(rows, 1); !ok || len(look.Holders) != 1 || look.HolderOf(id(7)).PID != holder.PID() {
		t.Errorf("%t, the holders are %+v, want backend %d", ok, look.Holders, holder.PID())
	}
}
