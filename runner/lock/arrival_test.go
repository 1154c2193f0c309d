package lock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
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

// TestArrival: a holder is done before a waiter that it has refused listens. It keeps the lock until
// then, and the waiter starts at once. Here it would wait for very long.
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
	const patience = "'200ms'"
	awaits := make(chan struct{})
	begin := sync.OnceFunc(func() { close(awaits) })
	h := acquire(t, config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.Contains(sql, patience) {
			begin()
		}
		return strings.Replace(sql, patience, "'1h'", 1)
	}), of))
	waiter, goOn := arriving(t, server, next)
	released := make(chan error)
	go func() { released <- h.Release(t.Context()) }()
	select {
	case <-awaits:
	case err := <-released:
		t.Fatal("it is released before the waiter listens", err)
	}
	goOn()
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	release(t, waiter.held(t))
	if said := waiter.said(); !slices.Equal(said, []string{"waiting"}) {
		t.Errorf("it said %v", said)
	}
}

// TestArrivalOfList: a bid of a list that is refused arrives, too, and is waited for until it listens, or
// gives up listening.
func TestArrivalOfList(t *testing.T) {
	t.Parallel()
	for name, listens := range map[string]bool{"it listens": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			const patience = "'200ms'"
			awaits := make(chan struct{})
			cfg := config(t, newSlowRelay(t, server, func(sql string) string {
				if strings.Contains(sql, patience) {
					close(awaits)
				}
				return strings.Replace(sql, patience, "'1h'", 1)
			}), exclusive(7))
			cfg.OfList = true
			h := acquire(t, cfg)
			t.Cleanup(h.Session.Close)
			s, err := session.Open(t.Context(), config(t, server.DSN("postgres"), exclusive(7)).Session)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			next := lock.NewBid(s, cfg, false)
			if try(t, next) {
				t.Fatal("two have the lock")
			}
			released := make(chan error)
			go func() { released <- h.Release(t.Context()) }()
			select {
			case <-awaits:
			case err := <-released:
				t.Fatal("it is released before the bid listens", err)
			}
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

// TestArrivalFrozen: a waiter that does not go on costs its holder a moment, and no more: the next
// starts at once.
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
