package lock_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestManyAddresses: a host's name may have many addresses, and servers at them may accept a
// connection and say nothing. A candidate that tries one after the other never seems stuck.
func TestManyAddresses(t *testing.T) {
	const addresses, patience = 12, 500 * time.Millisecond
	var silent []string
	for range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		silent = append(silent, l.Addr().String())
	}
	cfg := leased(config(t, "postgres://app@many/app?sslmode=disable", exclusive(7)), 300*time.Millisecond)
	cfg.Session.ConnectTimeout, cfg.LockDelay, cfg.Wait = patience, 0, 0
	cfg.Session.Database.LookupFunc = func(context.Context, string) ([]string, error) { return silent, nil }
	var (
		mu    sync.Mutex
		until = time.Now().Add(time.Minute)
		late  time.Duration // by how much a call came later than the one before had announced
	)
	cfg.Observer.Alive = func(within time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		late = max(late, time.Since(until))
		until = time.Now().Add(within)
	}
	began := time.Now()
	if _, err := lock.NewCandidate(cfg).Acquire(t.Context(), nil); kindOf(err) != session.Unreachable {
		t.Error(err)
	}
	if took := time.Since(began); took < addresses*patience {
		t.Fatalf("it took %v: the test shows nothing", took)
	}
	if late = max(late, time.Since(until)); late > 0 {
		t.Errorf("it seemed stuck for %v", late)
	}
}

// TestSlowAnswers: a server that takes nearly three tenths of the lease for each answer does not
// lose its holders, from the first heartbeat on.
func TestSlowAnswers(t *testing.T) {
	const lease = 3 * time.Second
	var passed time.Time
	cfg := leased(config(t, newSlowRelay(t, start(t, nil), func(sql string) string {
		if time.Since(passed) > 50*time.Millisecond { // the queries of one request come together
			time.Sleep(700 * time.Millisecond)
		}
		passed = time.Now()
		return sql
	}), exclusive(7)), lease)
	held := acquire(t, cfg)
	held.Session.StartHeartbeat()
	select {
	case <-held.Lost():
		t.Error(held.Err())
	case <-time.After(2 * lease):
	}
}
