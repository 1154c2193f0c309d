package lock_test

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRehearsal: a holder rehearses the announcement of its end once, with its first heartbeat.
// Nobody hears the rehearsal, not even a listener, and an error in it costs no more than that
// heartbeat.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	for name, instead := range map[string]string{"heard by nobody": "pid IS NULL", "rejected": "1 / 0 = 1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			rehearsed, beats := make(chan struct{}, 10), make(chan struct{}, 100)
			h := acquire(t, leased(config(t, newSlowRelay(t, server, func(sql string) string {
				switch {
				case strings.Contains(sql, "pid IS NULL"):
					rehearsed <- struct{}{}
				case strings.Contains(sql, "pg_try_advisory_lock_shared"):
					beats <- struct{}{}
				}
				return strings.Replace(sql, "pid IS NULL", instead, 1)
			}), exclusive(7)), 3*time.Second))
			waiter := contend(t, config(t, server.DSN("postgres"), exclusive(7)))
			inLine(t, server, id(7), 1)
			for range 3 {
				select {
				case <-beats:
				case <-h.Lost():
					t.Fatal("it is lost", h.Err())
				case <-time.After(longest):
					t.Fatal("no heartbeat")
				}
			}
			if len(rehearsed) != 1 {
				t.Errorf("it was rehearsed %d times", len(rehearsed))
			}
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

// TestRehearsedTurn: the first in line rehearses its try and its draw once, with the first question
// of its watch. The rehearsal takes no lock, shows no token and leaves the waiter its place. An error
// in it costs no more than that question.
func TestRehearsedTurn(t *testing.T) {
	t.Parallel()
	for name, instead := range map[string]string{"finds nothing": "pid IS NULL", "rejected": "1 / 0 = 1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			rehearsed, questions := make(chan struct{}, 10), make(chan struct{}, 100)
			h := acquire(t, leased(config(t, server.DSN("postgres"), exclusive(7)), 3*time.Second))
			waiter := contend(t, leased(config(t, newSlowRelay(t, server, func(sql string) string {
				switch {
				case strings.Contains(sql, "pid IS NULL"):
					rehearsed <- struct{}{}
				case strings.Contains(sql, "EXECUTE pglead_"):
					questions <- struct{}{}
				}
				return strings.Replace(sql, "pid IS NULL", instead, 1)
			}), exclusive(7)), 3*time.Second))
			for range 3 {
				select {
				case <-questions:
				case <-waiter.done:
					t.Fatal("it waits no longer", waiter.err)
				case <-time.After(longest):
					t.Fatal("no question")
				}
			}
			if len(rehearsed) != 1 {
				t.Errorf("it was rehearsed %d times", len(rehearsed))
			}
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
