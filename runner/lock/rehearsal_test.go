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
