package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/lock"
)

// TestLongerLease: a waiter whose lease is shorter than the holder's waits for as long as the
// holder's command may live, and not only for its own lease, unless the holder is of another role.
func TestLongerLease(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	holders, waiters := as(t, server, "holders"), as(t, server, "waiters")
	query(t, server, "GRANT pg_read_all_stats TO waiters") // so that it sees the holder's lease
	for number, by := range []string{holders, waiters} {
		cfg := config(t, holders, exclusive(int64(number)))
		cfg.LockDelay = time.Second
		h := acquire(t, leased(cfg, 4*lease))
		cfg.Session.Database = config(t, by, cfg.Claim).Session.Database
		next := contend(t, cfg)
		inLine(t, server, id(int64(number)), 1)
		tear(t, server, h)
		holdsAndWaits(t, next)
		next.stop()
		<-next.done
		most := leasetime.DeadAfter(4*lease, 0)
		if by == waiters {
			most = lease
		}
		if said, want := next.texts[len(next.texts)-1], fmt.Sprintf("the command starts within %v", most); !strings.HasSuffix(said, want) {
			t.Errorf("by %s it says %q, want %q", by, said, want)
		}
	}
}

// TestLongerLeaseLearntLate: a start was announced just before the grant, so that the announcer's
// role is looked up only afterwards. Its longer lease counts.
func TestLongerLeaseLearntLate(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	cfg.LockDelay = time.Second
	log := &contender{}
	cfg.Log = slog.New(log)
	b := bid(t, cfg)
	if err := b.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer plain(t, server.DSN("postgres"), fmt.Sprintf("NOTIFY \"pglead.1.7\", 'started 5 %d 0'", (4*lease).Milliseconds())).Close(t.Context())
	if !try(t, b) {
		t.Fatal("the lock is free, and the try is refused")
	}
	ctx, cancel := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() {
		_, err := b.Settle(ctx)
		settled <- err
	}()
	eventually(t, "the bid waits", func() bool { return len(log.said()) > 0 })
	cancel()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if want := fmt.Sprintf("the command starts within %v", leasetime.DeadAfter(4*lease, 0)); !strings.HasSuffix(log.texts[0], want) {
		t.Errorf("it says %q, want %q", log.texts[0], want)
	}
}

// TestDelayGrows: while a granted lock is held without a command, an earlier start is heard of whose
// command may live for longer than the delay under way. The delay goes on.
func TestDelayGrows(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	cfg.LockDelay = 3 * time.Second
	log := &contender{}
	cfg.Log = slog.New(log)
	b := lock.NewBid(open(t, cfg), cfg, true)
	if err := b.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !try(t, b) {
		t.Fatal("the lock is free, and the try is refused")
	}
	ctx, cancel := context.WithCancel(t.Context())
	settled := make(chan error)
	go func() {
		_, err := b.Settle(ctx)
		settled <- err
	}()
	eventually(t, "it waits", func() bool { return len(log.said()) > 0 })
	defer plain(t, server.DSN("postgres"), fmt.Sprintf("NOTIFY \"pglead.1.7\", 'started 5 %d 0'", time.Hour.Milliseconds())).Close(t.Context())
	eventually(t, "it waits for the longer lease", func() bool {
		select {
		case err := <-settled:
			t.Fatalf("it has started, or failed: %v", err)
		default:
		}
		return len(log.said()) > 1
	})
	cancel()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if want := []string{"delayed", "delayed"}; !slices.Equal(log.said(), want) || !strings.Contains(log.texts[1], "starts within 39m") { // of two thirds of the lease, some seconds are over
		t.Errorf("it said %q, %q", log.said(), log.texts)
	}
}
