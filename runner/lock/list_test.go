package lock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// openList opens the list of number 1.
func openList(t *testing.T, cfg lock.Config) *lock.List {
	t.Helper()
	l, err := lock.OpenList(t.Context(), cfg, id(1), func(lockkey.ID, bool) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// takeItem tries for the lock of this number, which is free.
func takeItem(t *testing.T, l *lock.List, cfg lock.Config, number int64, returning bool) *lock.Attempt {
	t.Helper()
	cfg.Claim.IDs = []lockkey.ID{id(number)}
	a := l.Attempt(cfg, returning)
	if _, err := l.Exchange(nil, a); err != nil || !a.Granted() {
		t.Fatalf("%d: granted %t, %v", number, a.Granted(), err)
	}
	return a
}

// refuseItem tries for a lock that somebody else has, and listens until the next attempt.
func refuseItem(t *testing.T, l *lock.List, cfg lock.Config) {
	t.Helper()
	a := l.Attempt(cfg, false)
	defer a.Close()
	if _, err := l.Exchange(nil, a); err != nil || a.Granted() {
		t.Fatalf("granted %t, %v", a.Granted(), err)
	}
	if err := a.KeepListening(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// settleItem settles a lock that takeItem has taken.
func settleItem(t *testing.T, a *lock.Attempt) *lock.Held {
	t.Helper()
	h, err := a.Settle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestDelayStaysShown: while an item's lock is held for the lock-delay, its session says so, also
// when another item starts there: whoever finds that the session is silent has to wait for the
// earlier holder for which the item waits.
func TestDelayStaysShown(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), lock.Claim{})
	cfg.Description.Keys = []string{"{}"} // before the first item
	l := openList(t, cfg)
	shown := func() (d describe.Description) {
		t.Helper()
		if _, err := l.Session.Query(t.Context(), session.PlainBeatQuery); err != nil {
			t.Fatal(err)
		}
		text := query(t, server, "SELECT query FROM pg_stat_activity WHERE application_name = 'pglead:test@here'")[0]
		d, ok := describe.Parse(text)
		if !ok {
			t.Fatalf("it shows %s", text)
		}
		slices.Sort(d.Keys)
		return d
	}
	shows := func(what string, delay time.Duration, want ...string) {
		t.Helper()
		if d := shown(); d.Delay != delay || !slices.Equal(d.Keys, want) {
			t.Errorf("%s: it shows the keys %q and the delay %v; want %q and %v", what, d.Keys, d.Delay, want, delay)
		}
	}
	take := func(number int64, key string, returning bool) *lock.Attempt {
		t.Helper()
		cfg.Claim.Keys = []string{key}
		return takeItem(t, l, cfg, number, returning)
	}
	first := take(11, "first", true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := make(chan error, 1)
	go func() {
		_, err := first.Settle(ctx)
		waited <- err
	}()
	eventually(t, "the first item waits", func() bool { return shown().Delay > 0 })
	shows("the first waits", longDelay, "first")
	second := take(12, "second", false)
	settleItem(t, second)
	shows("the second has started", longDelay, "first", "second")
	if err := second.GiveBack(); err != nil {
		t.Error(err)
	}
	second.Close()
	shows("the second has ended", longDelay, "first")
	cancel()
	if err := <-waited; err == nil {
		t.Error("the first has started")
	}
	shows("the first is given up", 0, "first")
	first.Close()
}

// TestKeptAreBounded: a list listens to a bounded number of items' locks, and to those again to
// which it comes back.
func TestKeptAreBounded(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), lock.Claim{})
	l := openList(t, cfg)
	kept := func(number int64) bool {
		t.Helper()
		cfg.Claim.IDs = []lockkey.ID{id(number)}
		a := l.Attempt(cfg, false)
		defer a.Close()
		if err := a.KeepListening(t.Context()); err != nil {
			t.Fatal(err)
		}
		return a.Kept()
	}
	for n := range int64(lock.MostKept) {
		if !kept(n) {
			t.Fatalf("no room for %d", n)
		}
	}
	if kept(lock.MostKept) || !kept(0) {
		t.Error("it is not the known ones that are kept")
	}
	cfg.Claim.IDs = []lockkey.ID{id(0)}
	l.Attempt(cfg, true).Close() // nobody comes back to it any more
	if !kept(lock.MostKept) {
		t.Error("no room for another one")
	}
}

// TestInterruptedItem: an item whose start is interrupted leaves its lock to others, though the
// list's session goes on.
func TestInterruptedItem(t *testing.T) {
	t.Parallel()
	cfg := config(t, start(t, nil).DSN("postgres"), exclusive(11))
	l := openList(t, cfg)
	a := takeItem(t, l, cfg, 11, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Settle(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted start: %v", err)
	}
	if !try(t, bid(t, cfg)) {
		t.Error("the lock is not free")
	}
	if err := l.Session.EndError(); err != nil {
		t.Errorf("the list's session has ended: %v", err)
	}
}

// TestSettleAtOnce: an item's holder is seen, and its session is ended. An attempt that must not wait
// leaves that knowledge to the next one, which does not start at once either.
func TestSettleAtOnce(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(2))
	holder := acquire(t, cfg)
	l := openList(t, cfg)
	refuseItem(t, l, cfg)
	tear(t, server, holder)
	for range 2 {
		early := takeItem(t, l, cfg, 2, false)
		if _, err := early.SettleAtOnce(t.Context()); !errors.Is(err, lock.ErrDelayed) {
			t.Errorf("it starts at once, or fails: %v", err)
		}
		early.Close()
	}
	if held := query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 2 AND objsubid = 1")[0]; held != "0" {
		t.Error("its lock is still held")
	}
}

// TestSettleAtOnceWithLedger: the ledger knows of no end of an item's last run. An attempt that must
// not wait does not wait for that run's command either.
func TestSettleAtOnceWithLedger(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	cfg.Observer.Delayed = func(time.Time) { t.Error("it waits") }
	tear(t, server, acquire(t, cfg))
	a := takeItem(t, openList(t, cfg), cfg, 7, false)
	defer a.Close()
	if _, err := a.SettleAtOnce(t.Context()); !errors.Is(err, lock.ErrDelayed) {
		t.Errorf("it starts at once, or fails: %v", err)
	}
	if held := query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND objsubid = 1")[0]; held != "0" {
		t.Error("its lock is still held")
	}
}

// TestKeptForAnotherKey: the locks of two keys may have one number. An attempt at one knows what an
// earlier attempt at the other has heard of their lock, but it announces the end of its own.
func TestKeptForAnotherKey(t *testing.T) {
	t.Parallel()
	cfg := config(t, start(t, nil).DSN("postgres"), exclusive(2))
	var heard []lockkey.ID // by the session's reader, before each answer
	hearer, err := lock.OpenList(t.Context(), cfg, id(1), func(item lockkey.ID, _ bool) { heard = append(heard, item) })
	if err != nil {
		t.Fatal(err)
	}
	defer hearer.Close()
	l, holder := openList(t, cfg), acquire(t, cfg)
	cfg.Claim.Keys = []string{"refused"}
	refuseItem(t, l, cfg)
	if err := holder.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg.Claim.Keys = []string{"run"}
	a := takeItem(t, l, cfg, 2, true)
	h, err := a.SettleAtOnce(t.Context())
	if err != nil {
		t.Fatalf("it has not heard that the holder's end was clean: %v", err)
	}
	ended(h, ledger.OK)
	if releaseErr, _ := l.Exchange(a, nil); releaseErr != nil {
		t.Fatal(releaseErr)
	}
	a.Close()
	if _, err := hearer.Session.Query(t.Context(), session.PlainBeatQuery); err != nil {
		t.Fatal(err)
	}
	if want := []lockkey.ID{lockkey.SipHash24("run")}; !slices.Equal(heard, want) {
		t.Errorf("heard of %v, want %v", heard, want)
	}
}

// TestKeyLikeToken: the name of a list's session doesn't show that a command is dead, not even if the
// list's key looks like a token.
func TestKeyLikeToken(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	cfg.Session.ApplicationName = describe.Name{Key: "#5- {}", Host: "here"}.String()
	l := openList(t, cfg)
	h := settleItem(t, takeItem(t, l, cfg, 7, false))
	next := contend(t, config(t, server.DSN("postgres"), exclusive(7)))
	inLine(t, server, id(7), 1)
	tear(t, server, h)
	holdsAndWaits(t, next)
}
