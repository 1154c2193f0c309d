package lock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
)

// TestReadersAndWriters: nobody can say that the last of several readers is dead, so a writer
// waits. Readers don't wait for each other.
func TestReadersAndWriters(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")

	r := acquire(t, config(t, dsn, shared(1)))
	w := contend(t, config(t, dsn, exclusive(1)))
	inLine(t, server, id(1), 1)
	release(t, r)
	holdsAndWaits(t, w)

	writer := acquire(t, config(t, dsn, exclusive(2)))
	var readers []*contender
	for i := range 3 {
		readers = append(readers, contend(t, config(t, dsn, shared(2))))
		inLine(t, server, id(2), i+1)
	}
	release(t, writer)
	for _, reader := range readers {
		h := reader.held(t)
		if delayed(reader) {
			t.Errorf("a reader after a clean writer: %v", reader.said())
		}
		defer release(t, h)
	}

	// One writer is torn from the lock, and another ends between readers.
	writer = acquire(t, config(t, dsn, exclusive(3)))
	reader := contend(t, config(t, dsn, shared(3)))
	inLine(t, server, id(3), 1)
	tear(t, server, writer)
	holdsAndWaits(t, reader)
	lock.ReportLost(t.Context(), writer)
	release(t, reader.held(t))
}

// TestWritersAreServed: though there is always another reader, a writer gets its turn.
func TestWritersAreServed(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), shared(7))
	cfg.LockDelay = 0
	once := cfg
	once.Wait = 0
	ctx, stop := context.WithCancel(context.Background())
	var stream sync.WaitGroup
	defer stream.Wait()
	defer stop()
	const readers = 3
	first := []*lock.Held{acquire(t, cfg), acquire(t, cfg), acquire(t, cfg)}
	for i := range readers {
		stream.Go(func() { // one or the other has the lock all the time
			h := first[i]
			for n := i; ; n++ {
				pace.Sleep(ctx, time.Duration(200+100*i)*time.Millisecond)
				next, err := lock.NewCandidate(once).Acquire(ctx, nil) // before the last one goes
				_ = h.Release(context.WithoutCancel(ctx))
				h.Close()
				of := cfg
				if n%2 == 0 {
					of = once
				}
				for err != nil && ctx.Err() == nil {
					pace.Sleep(ctx, 20*time.Millisecond)
					next, err = lock.NewCandidate(of).Acquire(ctx, nil)
				}
				if err != nil {
					return
				}
				h = next
			}
		})
	}
	writing := cfg
	writing.Claim = exclusive(7)
	writer := contend(t, writing)
	h := writer.held(t)
	if try(t, bid(t, once)) {
		t.Error("a reader beside the writer")
	}
	release(t, h)
	if held := query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = "+advisory.GateOf(id(7)).String()+" AND mode = 'ExclusiveLock'")[0]; held != "0" {
		t.Error("the gate stays closed after the writer")
	}
}
