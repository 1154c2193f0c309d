package lock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
)

// warmups are the ways in which a warm-up can end, and what its condition, by which it finds
// nothing, is replaced by.
var warmups = map[string]string{"finds nothing": "pid IS NULL", "rejected": "1 / 0 = 1"}

// warmup is a relay that sees a session's warm-ups, and the heartbeats' queries.
type warmup struct {
	dsn         string
	seen, beats chan struct{}
}

// newWarmup returns a relay that puts instead into the warm-ups. A query that contains beat is
// a heartbeat's.
func newWarmup(t *testing.T, server *localpg.Server, instead, beat string) warmup {
	t.Helper()
	r := warmup{seen: make(chan struct{}, 10), beats: make(chan struct{}, 100)}
	r.dsn = newSlowRelay(t, server, func(sql string) string {
		switch {
		case strings.Contains(sql, "pid IS NULL"):
			r.seen <- struct{}{}
		case strings.Contains(sql, beat):
			r.beats <- struct{}{}
		}
		return strings.Replace(sql, "pid IS NULL", instead, 1)
	})
	return r
}

// once waits for three heartbeats, and makes sure that there was one warm-up. over is closed if
// there will be no further heartbeat.
func (r warmup) once(t *testing.T, over <-chan struct{}) {
	t.Helper()
	for range 3 {
		select {
		case <-r.beats:
		case <-over:
			t.Fatal("there are no more heartbeats")
		case <-time.After(longest):
			t.Fatal("no heartbeat")
		}
	}
	if len(r.seen) != 1 {
		t.Errorf("it has warmed up %d times", len(r.seen))
	}
}

// TestWarmup: a holder warms up for the announcement of its end once, with its first heartbeat.
// Nobody hears the warm-up, not even a listener, and an error in it costs no more than that
// heartbeat.
func TestWarmup(t *testing.T) {
	t.Parallel()
	for name, instead := range warmups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			r := newWarmup(t, server, instead, "pg_try_advisory_lock_shared")
			h := acquire(t, leased(config(t, r.dsn, exclusive(7)), 3*time.Second))
			waiter := contend(t, config(t, server.DSN("postgres"), exclusive(7)))
			inLine(t, server, id(7), 1)
			r.once(t, h.Lost())
			if !waiter.waits() || !slices.Equal(waiter.said(), []string{"waiting"}) {
				t.Error("the waiter has heard something", waiter.said())
			}
			release(t, h)
			release(t, waiter.held(t))
			if said := waiter.said(); !slices.Equal(said, []string{"waiting"}) {
				t.Error(said)
			}
		})
	}
}

// TestWarmTurn: the first in line warms up for its try and its draw once, with the first question
// of its watch. The warm-up takes no lock, shows no token and leaves the waiter its place. An error
// in it costs no more than that question.
func TestWarmTurn(t *testing.T) {
	t.Parallel()
	for name, instead := range warmups {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			r := newWarmup(t, server, instead, "EXECUTE pglead_")
			h := acquire(t, leased(config(t, server.DSN("postgres"), exclusive(7)), 3*time.Second))
			waiter := contend(t, leased(config(t, r.dsn, exclusive(7)), 3*time.Second))
			r.once(t, waiter.done)
			eventually(t, "the lock, the ticket and the mark are all there is", func() bool { return advisoryLocks(t, server) == "3" })
			if named := query(t, server, "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'pglead:#%'"); len(named) != 1 {
				t.Errorf("tokens are shown by %q", named)
			}
			release(t, h)
			next := waiter.held(t)
			if next.Token <= h.Token {
				t.Errorf("its token is %d, after %d", next.Token, h.Token)
			}
			release(t, next)
			if said := waiter.said(); !slices.Equal(said, []string{"waiting"}) {
				t.Error(said)
			}
		})
	}
}
