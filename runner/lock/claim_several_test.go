package lock_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
)

func TestSeveralLocks(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	of := func(number int64) bool { return try(t, bid(t, config(t, dsn, exclusive(number)))) }

	blocker := acquire(t, config(t, dsn, exclusive(2)))
	next := contend(t, config(t, dsn, exclusive(1, 2, 3)))
	inLine(t, server, id(2), 1)
	if free := bid(t, config(t, dsn, exclusive(3))); of(1) || !try(t, free) {
		t.Error("what comes before the busy lock is to be held, what comes after it is not")
	} else {
		giveBack(t, free)
	}
	release(t, blocker)
	h := next.held(t)
	if delayed(next) || len(h.Locks()) != 3 {
		t.Errorf("after a clean end: %v, %d locks", next.said(), len(h.Locks()))
	}
	release(t, h)
	if n := advisoryLocks(t, server); n != "0" {
		t.Errorf("%s locks stay", n)
	}

	// A run that doesn't wait gets all or nothing, and so does a run in a transaction.
	blocker = acquire(t, config(t, dsn, exclusive(2)))
	none := config(t, dsn, exclusive(1, 2, 3))
	none.Wait = 0
	for _, cfg := range []lock.Config{none, inTransaction(none), inTransaction(config(t, dsn, exclusive(1, 2, 3)))} {
		b := bid(t, cfg)
		if try(t, b) {
			t.Fatal("2 is granted twice")
		}
		if n := advisoryLocks(t, server); n != "1" {
			t.Errorf("transaction %v: %s locks are held after a try in vain", cfg.Session.Transaction, n)
		}
	}
	release(t, blocker)
	for _, cfg := range []lock.Config{none, inTransaction(none)} {
		h := acquire(t, cfg)
		if n := advisoryLocks(t, server); n != "3" {
			t.Errorf("transaction %v: %s locks are held", cfg.Session.Transaction, n)
		}
		release(t, h)
	}
}

// TestLinesOfSeveral: a waiter for several locks stands in one line after the other, and has
// evidence of its own for each lock.
func TestLinesOfSeveral(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	first, last := acquire(t, config(t, dsn, exclusive(1))), acquire(t, config(t, dsn, exclusive(3)))
	next := contend(t, config(t, dsn, exclusive(1, 2, 3)))
	inLine(t, server, id(1), 1)
	release(t, first)
	inLine(t, server, id(3), 1)
	if n := query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid > 0 AND objsubid = 1")[0]; n != "1" {
		t.Errorf("%s tickets", n)
	}
	release(t, last)
	next.held(t)
	if delayed(next) {
		t.Errorf("after two clean ends: %v", next.said())
	}
	release(t, next.held(t))

	// A holder of the same keys announces the end of each, even if nobody stands in that one's
	// line.
	next = contend(t, config(t, dsn, exclusive(1, 2, 3)))
	h := acquire(t, config(t, dsn, exclusive(5, 6)))
	same := contend(t, config(t, dsn, exclusive(5, 6)))
	inLine(t, server, id(5), 1)
	release(t, h)
	release(t, same.held(t))
	if delayed(same) {
		t.Errorf("after the clean end of one with the same keys: %v", same.said())
	}
	release(t, next.held(t))

	for name, torn := range map[string][2]bool{"the first is torn": {true, false}, "the last is torn": {false, true}} {
		first, last := acquire(t, config(t, dsn, exclusive(1))), acquire(t, config(t, dsn, exclusive(3)))
		next := contend(t, config(t, dsn, exclusive(1, 2, 3)))
		inLine(t, server, id(1), 1)
		end := func(h *lock.Held, torn bool) {
			if torn {
				tear(t, server, h)
			} else {
				release(t, h)
			}
		}
		end(first, torn[0])
		inLine(t, server, id(3), 1)
		end(last, torn[1])
		holdsAndWaits(t, next)
		ended := last
		if torn[0] {
			ended = first
		}
		lock.ReportLost(t.Context(), ended)
		release(t, next.held(t))
		t.Log(name)
	}
}

// TestOverlappingClaims: runs that want the same locks, and each another one besides, never keep
// each other from them for good.
func TestOverlappingClaims(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	var all []*contender
	blocker := acquire(t, config(t, dsn, exclusive(2)))
	for _, claim := range []lock.Claim{exclusive(1, 2), exclusive(2, 3), exclusive(1, 3), exclusive(1, 2, 3)} {
		cfg := config(t, dsn, claim)
		cfg.LockDelay = time.Second // it may not have heard the end of a lock in whose line it doesn't stand
		all = append(all, contend(t, cfg))
	}
	eventually(t, "all wait", func() bool {
		waiting := 0
		for _, c := range all {
			if len(c.said()) > 0 {
				waiting++
			}
		}
		return waiting >= len(all)-1
	})
	release(t, blocker)
	for range all {
		var h *lock.Held
		eventually(t, "somebody has all", func() bool {
			for i, c := range all {
				if c != nil && !c.waits() {
					h, all[i] = c.held(t), nil
					return true
				}
			}
			return false
		})
		release(t, h)
		h.Close()
	}
	if n := advisoryLocks(t, server); n != "0" {
		t.Errorf("%s locks stay", n)
	}
}

// lacksLast is a bid for two locks that has had the first, without evidence, for as long as the delay.
// The other one is held.
func lacksLast(t *testing.T, server *localpg.Server, delay time.Duration) (b *lock.Bid, last *lock.Held, log *contender) {
	t.Helper()
	last = acquire(t, config(t, server.DSN("postgres"), exclusive(8)))
	cfg := config(t, server.DSN("postgres"), exclusive(7, 8))
	log = &contender{}
	cfg.LockDelay, cfg.Log = delay, slog.New(log)
	b = lock.NewBid(open(t, cfg), cfg, true)
	if err := b.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !try(t, b) {
		t.Fatal("the first lock is free, and the try is refused")
	}
	time.Sleep(delay)
	return b, last, log
}

// TestDelayOverBeforeLastGrant: a run that has had the first of its locks for longer than the
// lock-delay, when it gets the last one with evidence, starts at once.
func TestDelayOverBeforeLastGrant(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	b, h, log := lacksLast(t, server, time.Second)
	release(t, h)
	eventually(t, "the last lock is free", func() bool { return try(t, b) })
	if _, err := b.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said := log.said(); len(said) > 0 {
		t.Errorf("it says %q", said)
	}
}

// TestDelayEndsWithLastLock: nor does it wait for the first one's word of an end, if it hears that
// the last one's holder is dead.
func TestDelayEndsWithLastLock(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	const delay = 5 * time.Second
	b, h, log := lacksLast(t, server, delay)
	tear(t, server, h)
	eventually(t, "the last lock is free", func() bool { return try(t, b) })
	var took time.Duration
	granted, settled := time.Now(), make(chan error, 1)
	go func() {
		_, err := b.Settle(t.Context())
		took = time.Since(granted)
		settled <- err
	}()
	eventually(t, "it waits for the last lock's command", func() bool { return slices.Contains(log.said(), "delayed") })
	lock.ReportLost(t.Context(), h)
	if err := <-settled; err != nil {
		t.Fatal(err)
	}
	if took >= delay {
		t.Errorf("it has waited for all of the delay, %v", took)
	}
}

// TestFreeAtTheLastMoment: if a wait ends just when the lock becomes free, the run has the lock or says that
// it doesn't. In the latter case it gives back what it got on the way.
func TestFreeAtTheLastMoment(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	for name, claims := range map[string][2]lock.Claim{
		"exclusive": {exclusive(7), exclusive(7)},
		"shared":    {exclusive(7), shared(7)},
		"several":   {exclusive(7), exclusive(6, 7, 8)},
		"slots":     {slots(7, 1), slots(7, 1)},
	} {
		granted := 0
		for i := range 8 {
			h := acquire(t, config(t, dsn, claims[0]))
			cfg := config(t, dsn, claims[1])
			cfg.Wait, cfg.LockDelay = 200*time.Millisecond, 0 // on a busy machine the release may come before it listens
			next := contend(t, cfg)
			time.Sleep(cfg.Wait + time.Duration(i-4)*10*time.Millisecond) // spreads the release around the wait's end
			release(t, h)
			h.Close()
			<-next.done
			refused, isHeld := next.err.(*lock.ConflictError) //nolint:errorlint // as it is
			want := "0"
			switch {
			case next.err == nil:
				granted++
				want = fmt.Sprint(len(claims[1].IDs))
			case !isHeld || refused.Waited != cfg.Wait:
				t.Fatalf("%s: %v", name, next.err)
			}
			if n := query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = 0")[0]; n != want {
				t.Errorf("%s: it ends with %v, and %s locks are held", name, next.err, n)
			}
			if next.got != nil {
				next.got.Close()
			}
			eventually(t, "its session is gone", func() bool { return advisoryLocks(t, server) == "0" })
		}
		t.Logf("%s: granted %d of 8", name, granted)
	}
}
