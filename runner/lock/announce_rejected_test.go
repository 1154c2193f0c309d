package lock_test

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// TestFullQueue: a full queue of notifications keeps a run from starting. A run that waits has the
// server free the queue, and then starts. For a run that doesn't wait it is an obstacle that
// passes. A holder says what could not be announced, and nothing of a ledger that has the end.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	fill := testserver.FillQueue(t, server)
	cfg := config(t, dsn, exclusive(7))
	cfg.LockDelay = 0
	holder := contend(t, ledgered(cfg))
	held := ended(holder.held(t), ledger.OK)
	one := contend(t, cfg)
	inLine(t, server, id(7), 1)
	two := contend(t, cfg)
	inLine(t, server, id(7), 2)

	fill()
	release(t, held)
	held.Close()
	if said := holder.said(); !slices.Equal(said, []string{"unheard"}) || !strings.Contains(holder.texts[0], "announce that the command has ended: too many notifications in the NOTIFY queue (54000)") {
		t.Errorf("the holder says %v: %s", said, holder.texts)
	}
	if got := rows(t, server); got != "nightly ok f t f" {
		t.Errorf("the ledger has %s", got)
	}
	releaseInTurn(t, one, two)
	if said := append(one.said(), two.said()...); !slices.Contains(said, "waiting") {
		t.Errorf("the waiters say %v", said)
	}

	plain(t, dsn, "SELECT "+advisory.CommonMarkOf(id(7)).TrySQL()) // as if it listened
	fill()
	cfg.Wait = 0
	refused := contend(t, cfg)
	<-refused.done
	if err := refused.err; kindOf(err) != session.Unreachable || err == nil || !strings.HasSuffix(err.Error(), ": too many notifications in the NOTIFY queue (54000)") {
		t.Errorf("without a wait: kind %d, %v", kindOf(err), err)
	}
	acquire(t, cfg) // the queue is free again
}

// releaseInTurn releases what one of two waiters has got, and then what the other one gets.
func releaseInTurn(t *testing.T, one, other *contender) {
	t.Helper()
	select {
	case <-one.done:
	case <-other.done:
		one, other = other, one
	}
	release(t, one.held(t))
	release(t, other.held(t))
}

// TestAnnouncementTimesOut: the announcement of an end waits for another session's NOTIFY for longer
// than a holder's session may wait for a lock. The error's code is that of a wait for arriving
// waiters, which costs nobody anything, but the holder warns of this one.
func TestAnnouncementTimesOut(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	var armed atomic.Bool
	holder := contend(t, config(t, newSlowRelay(t, server, func(sql string) string {
		if armed.Load() && strings.Contains(sql, "pg_notify") {
			return "DO $$BEGIN RAISE EXCEPTION USING ERRCODE = 'lock_not_available', MESSAGE = 'it took too long'; END$$"
		}
		return sql
	}), exclusive(7)))
	held := holder.held(t)
	next := config(t, server.DSN("postgres"), exclusive(7))
	next.LockDelay = time.Second // it hears no end
	waiter := contend(t, next)
	inLine(t, server, id(7), 1)
	armed.Store(true)
	release(t, held)
	held.Close()
	if said := holder.said(); !slices.Equal(said, []string{"unheard"}) || !strings.Contains(holder.texts[0], "it took too long (55P03)") {
		t.Errorf("the holder says %v: %s", said, holder.texts)
	}
	release(t, waiter.held(t))
}

// TestNotifiesHeldUp: another session's commit with a NOTIFY waits for a standby that is gone, and
// holds up all commits with a NOTIFY. No start that others listen to is announced meanwhile, and so
// none happens; but no session counts as silent, the waiters say what is in the way, and one starts
// once that is over. If nobody listens, a run starts all the same, and so does a list's item at the
// second try.
func TestNotifiesHeldUp(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"synchronous_standby_names": "nobody"})
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), 5*time.Second)
	cfg.LockDelay = time.Second
	holder := contend(t, cfg)
	held := holder.held(t)
	var waiters []*contender
	for n := range 2 {
		waiters = append(waiters, contend(t, cfg))
		inLine(t, server, id(7), n+1)
	}
	application := plain(t, server.DSN("postgres"))
	committed := make(chan error, 1)
	go func() {
		_, err := application.Exec(t.Context(), "BEGIN; SELECT pg_logical_emit_message(true, 'test', ''); NOTIFY test; COMMIT").ReadAll()
		committed <- err
	}()
	eventually(t, "the commit waits for a standby", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0] == "1"
	})

	alone := cfg
	alone.Claim = exclusive(8)
	release(t, acquire(t, alone))
	l := openList(t, cfg)
	cfg.Claim = exclusive(9)
	item := l.Attempt(cfg, false)
	if _, err := l.Exchange(nil, item); item.Granted() || !session.Passing(err) || !strings.HasSuffix(err.Error(), " (55P03)") {
		t.Errorf("granted %t, %v", item.Granted(), err)
	}
	item.Close()
	settleItem(t, takeItem(t, l, cfg, 9, true))

	release(t, held)
	held.Close()
	if said := holder.said(); !slices.Equal(said, []string{"unheard"}) {
		t.Errorf("the holder says %v", said)
	}
	for _, w := range waiters {
		eventually(t, "a waiter says what is in the way", func() bool { return len(w.why()) > 0 })
	}
	if !waiters[0].waits() || !waiters[1].waits() {
		t.Error("a start that others could not hear of")
	}
	query(t, server, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") // it is committed here
	if err := <-committed; err != nil {
		t.Error(err)
	}
	releaseInTurn(t, waiters[0], waiters[1])
	for _, w := range waiters {
		for _, reason := range w.why() {
			if !strings.HasSuffix(reason, ": canceling statement due to lock timeout (55P03)") {
				t.Errorf("a waiter waits because of %q", reason)
			}
		}
	}
}

// TestReleasedUnannounced: a lock is released although the server rejects the announcement of the
// end. A server does so when its queue of notifications is full; since that takes 8 GB, here a
// missing right is the reason.
func TestReleasedUnannounced(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := as(t, server, "cron")
	free := func() bool {
		return run(t, plain(t, server.DSN("postgres")), "SELECT pg_try_advisory_xact_lock(11)::text")[0] == "true"
	}
	forbid := func(t *testing.T) {
		t.Helper()
		query(t, server, "REVOKE EXECUTE ON FUNCTION pg_notify FROM PUBLIC")
		t.Cleanup(func() { query(t, server, "GRANT EXECUTE ON FUNCTION pg_notify TO PUBLIC") })
	}
	t.Run("run", func(t *testing.T) {
		c := contend(t, config(t, dsn, exclusive(11)))
		h := c.held(t)
		forbid(t)
		if err := h.Release(t.Context()); err != nil || !free() {
			t.Errorf("%v; the lock is free: %t", err, free())
		}
		if said := c.said(); !slices.Equal(said, []string{"unheard"}) {
			t.Errorf("said %v", said)
		}
	})
	t.Run("list", func(t *testing.T) {
		cfg, c := config(t, dsn, exclusive(11)), &contender{}
		cfg.Log = slog.New(c)
		l := openList(t, cfg)
		a := endedItem(t, l, cfg)
		forbid(t)
		if releaseErr, _ := l.Exchange(a, nil); releaseErr != nil || !free() {
			t.Errorf("%v; the lock is free: %t", releaseErr, free())
		}
		if said := c.said(); !slices.Equal(said, []string{"unheard"}) {
			t.Errorf("said %v", said)
		}
	})
}
