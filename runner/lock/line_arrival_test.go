package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
)

// arriving is a waiter that has been refused, and whose LISTEN is held back until goOn is called.
func arriving(t *testing.T, server *localpg.Server, claim lock.Claim) (waiter *contender, goOn func()) {
	t.Helper()
	held, over := make(chan struct{}), make(chan struct{})
	goOn = sync.OnceFunc(func() { close(over) })
	waiter = contend(t, config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.HasPrefix(sql, "LISTEN") {
			close(held)
			<-over
		}
		return sql
	}), claim))
	t.Cleanup(goOn)
	select {
	case <-held:
	case <-time.After(longest):
		t.Fatal("the waiter does not begin to listen")
	}
	return waiter, goOn
}

// patientRelay is the DSN of a relay through which a holder waits for arriving waiters for very
// long. awaits is closed when the holder begins to wait.
func patientRelay(t *testing.T, server *localpg.Server) (dsn string, awaits <-chan struct{}) {
	t.Helper()
	const patience = "'200ms'"
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	return newSlowRelay(t, server, func(sql string) string {
		if strings.Contains(sql, patience) {
			begin()
		}
		return strings.Replace(sql, patience, "'1h'", 1)
	}), begun
}

// releaseAwaiting begins a release, which waits for arriving waiters, and delivers its result.
func releaseAwaiting(t *testing.T, h *lock.Held, awaits <-chan struct{}) (released <-chan error) {
	t.Helper()
	end := make(chan error)
	go func() { end <- h.Release(t.Context()) }()
	select {
	case <-awaits:
	case err := <-end:
		t.Fatal("it is released before the other one listens", err)
	}
	return end
}

// TestArrival: a holder is done before a waiter that it has refused listens. It keeps the lock
// until the waiter listens, and the waiter then starts at once. Here the holder would wait for very
// long.
func TestArrival(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]struct{ holder, waiter lock.Claim }{
		"one lock":           {exclusive(7), exclusive(7)},
		"several":            {exclusive(7, 8), exclusive(7, 8)},
		"the second of them": {exclusive(7), exclusive(6, 7)},
		"the only slot":      {slots(7, 1), slots(7, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testArrival(t, claims.holder, claims.waiter)
		})
	}
}

func testArrival(t *testing.T, of, next lock.Claim) {
	t.Helper()
	server := start(t, nil)
	dsn, awaits := patientRelay(t, server)
	h := acquire(t, config(t, dsn, of))
	waiter, goOn := arriving(t, server, next)
	released := releaseAwaiting(t, h, awaits)
	goOn()
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	release(t, waiter.held(t))
	if said := waiter.said(); !slices.Equal(said, []string{"waiting"}) {
		t.Errorf("it said %v", said)
	}
}

// TestArrivalOfList: a refused bid of a list arrives, too. The holder waits until the bid listens,
// or gives up listening.
func TestArrivalOfList(t *testing.T) {
	t.Parallel()
	for name, listens := range map[string]bool{"it listens": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			dsn, awaits := patientRelay(t, server)
			h := acquire(t, staying(config(t, dsn, exclusive(7))))
			t.Cleanup(h.Session.Close)
			next := bid(t, staying(config(t, server.DSN("postgres"), exclusive(7))))
			if try(t, next) {
				t.Fatal("two have the lock")
			}
			released := releaseAwaiting(t, h, awaits)
			arrived := next.EndArrival
			if listens {
				arrived = next.Listen
			}
			if err := errors.Join(arrived(t.Context()), <-released); err != nil {
				t.Fatal(err)
			}
			if !try(t, next) {
				t.Fatal("the lock is free, and was refused")
			}
			ctx, cancel := context.WithTimeout(t.Context(), longest)
			if !listens {
				ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			}
			defer cancel()
			if _, err := next.Settle(ctx); (err == nil) != listens {
				t.Errorf("to start without a delay: %v", err)
			}
		})
	}
}

// TestArrivalsOfStrangers: a stranger that has the arrival locks of many locks delays their release
// for a moment and no longer: the release does not run out of time.
func TestArrivalsOfStrangers(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	numbers := make([]int64, 60)
	var arrivals []string
	for i := range numbers {
		numbers[i] = int64(i + 1)
		arrivals = append(arrivals, advisory.Exclusive(advisory.ArrivalOf(id(numbers[i])).ID).TrySQL())
	}
	h := acquire(t, config(t, server.DSN("postgres"), exclusive(numbers...)))
	plain(t, server.DSN("postgres"), "SELECT "+strings.Join(arrivals, ", "))
	release(t, h)
}

// TestArrivalFrozen: a waiter that freezes while it arrives costs the holder a moment and no more,
// and the next waiter starts at once.
func TestArrivalFrozen(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	h := acquire(t, config(t, server.DSN("postgres"), exclusive(7)))
	waiter, goOn := arriving(t, server, exclusive(7))
	release(t, h)
	next := acquire(t, config(t, server.DSN("postgres"), exclusive(7)))
	goOn()
	inLine(t, server, id(7), 1)
	release(t, next)
	release(t, waiter.held(t))
	if said := waiter.said(); !slices.Equal(said, []string{"waiting"}) {
		t.Errorf("it said %v", said)
	}
}
