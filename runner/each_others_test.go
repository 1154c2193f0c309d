package runner

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestEndsIfNotFreed: the server refuses to free an item's lock, so the list has to end, and its
// session with it. So it is with the lock of a command that has ended, and with one that was
// fetched ahead in vain.
func TestEndsIfNotFreed(t *testing.T) {
	server := testserver.Start(t, nil)
	testserver.Query(t, server, `ALTER FUNCTION pg_catalog.pg_advisory_unlock(bigint) RENAME TO really_unlock;
CREATE FUNCTION pg_catalog.pg_advisory_unlock(bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
	IF to_regclass('public.broken') IS NOT NULL THEN RAISE 'no memory'; END IF;
	RETURN pg_catalog.really_unlock($1);
END $$`)
	for name, free := range map[string]func(context.Context, *worker, *activeItem){
		"released": func(ctx context.Context, w *worker, it *activeItem) {
			it.run.held.SetEnd(ledger.End{Outcome: ledger.OK})
			w.last = it
			w.releaseLast()
		},
		"fetched ahead": func(ctx context.Context, w *worker, it *activeItem) {
			queue, got := make(chan string, 1), make(chan fetched, 1)
			queue <- "2"
			w.queue, w.ahead = queue, make(chan struct{})
			w.cfg.Task = func(item string) Task { return Task{Key: item, ID: id(2)} }
			got <- fetched{} // nobody takes what it fetches
			go w.fetchAhead(ctx, got)
			<-ctx.Done()
			<-got
			<-got
		},
	} {
		w, it := workerOn(t, lockOn(t, server), 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		w.cancel = cancel
		if settled, err := w.settleOrSkip(ctx, it, nil); !settled {
			t.Fatal(err)
		}
		testserver.Query(t, server, "CREATE TABLE public.broken ()")
		free(ctx, w, it)
		testserver.Query(t, server, "DROP TABLE public.broken")
		if err := w.reason(ctx); err == nil || !strings.Contains(err.Error(), "no memory") {
			t.Errorf("%s: the list ends with %v", name, err)
		}
		w.list.Close()
	}
}

// TestEndOfOther: a list ends with the error of one worker, while another has the lock of an item
// whose command has not started. That error says nothing about this item.
func TestEndOfOther(t *testing.T) {
	server := testserver.Start(t, nil)
	for name, end := range map[string]error{
		"a lost lock":        &LockLostError{Database: "app", Cause: errors.New("its session ended"), What: "the command (process 1) was killed"},
		"a dead guard":       child.ErrGuardDied,
		"no such executable": &child.LookupError{},
	} {
		locking := lockOn(t, server)
		locking.Session.Transaction = true
		var said bytes.Buffer
		locking.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
		w, it := workerOn(t, locking, 2)
		w.process, _ = signalsTo(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		w.cancel = cancel
		if settled, err := w.settleOrSkip(ctx, it, nil); !settled {
			t.Fatal(err)
		}
		w.end(end)
		unreleased, err := w.runItem(ctx, it)
		if unreleased != nil || err == nil || errors.Is(err, end) || !strings.Contains(err.Error(), end.Error()) {
			t.Errorf("%s: %v, unreleased %v", name, err, unreleased)
		}
		if said.Len() > 0 || len(w.lostLocks) > 0 || w.tally != (Tally{}) {
			t.Errorf("%s: says %q, %d locks count as lost; %+v", name, said.String(), len(w.lostLocks), w.tally)
		}
		if free := testserver.Query(t, server, "SELECT pg_try_advisory_xact_lock(1)")[0]; free != "t" {
			t.Errorf("%s: its lock is still held", name)
		}
		if got := w.reason(ctx); !errors.Is(got, end) {
			t.Errorf("%s: the list ends with %v", name, got)
		}
	}
}
