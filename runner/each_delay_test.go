package runner

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// TestDelayStaysShown: while an item's lock is held for the lock-delay, its session says so, also
// when another item starts there: whoever finds that the session is silent has to wait for the
// earlier holder for which the item waits.
func TestDelayStaysShown(t *testing.T) {
	server := testserver.Start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := Config{Lock: lockOn(t, server)}
	cfg.Lock.OfList = true
	e := &each{cfg: EachConfig{Config: cfg}, jobs: jobs{active: map[lockkey.ID]*job{}}}
	w := &worker{each: e}
	s, err := session.Open(ctx, e.cfg.Lock.Session)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	take := func(n int64, key string, contested bool) *job {
		t.Helper()
		e.returning = contested
		j := &job{Task: Task{Key: key, ID: id(n)}, session: s, log: slog.New(slog.DiscardHandler)}
		e.jobs.enter(j)
		j.bid = e.bidFor(j)
		if granted, err := j.bid.Try(ctx); err != nil || !granted {
			t.Fatalf("%s: granted %t, %v", key, granted, err)
		}
		return j
	}
	shows := func(what string, delay time.Duration, want ...string) {
		t.Helper()
		if err := s.Ping(ctx); err != nil {
			t.Fatal(err)
		}
		shown := testserver.Query(t, server, "SELECT query FROM pg_stat_activity WHERE application_name = 'pglead:test@here'")
		d, ok := describe.Parse(shown[0])
		slices.Sort(d.Keys)
		if !ok || d.Delay != delay || !slices.Equal(d.Keys, want) {
			t.Errorf("%s: it shows %s; want the keys %q and the delay %v", what, shown[0], want, delay)
		}
	}
	first := take(1, "first", true)
	waited := make(chan error, 1)
	go func() {
		_, err := w.settleOrSkip(ctx, first, true)
		waited <- err
	}()
	testserver.Eventually(t, "the first item waits", func() bool {
		_, delay := e.jobs.shown(s)
		return delay > 0
	})
	shows("the first waits", time.Hour, "first")
	second := take(2, "second", false)
	if settled, err := w.settleOrSkip(ctx, second, true); !settled || err != nil {
		t.Fatalf("the second: settled %t, %v", settled, err)
	}
	shows("the second has started", time.Hour, "first", "second")
	e.jobs.leave(second)
	e.describe(s)
	shows("the second has ended", time.Hour, "first")
	cancel()
	if err := <-waited; err == nil {
		t.Error("the first has started")
	}
	ctx = t.Context()
	shows("the first is given up", 0, "first")
}
