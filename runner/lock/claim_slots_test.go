package lock_test

import (
	"testing"
	"time"

	"github.com/pglead/pglead/runner/lock"
)

func TestSlots(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	const n, number = 3, 101
	cfg := config(t, dsn, slots(number, n))
	gate := *cfg.Claim.Gate
	var holders []*lock.Held
	for i := range n {
		h := acquire(t, cfg)
		if h.Slot() != i+1 {
			t.Fatalf("holder %d is granted slot %d", i+1, h.Slot())
		}
		holders = append(holders, h)
	}
	once := cfg
	once.Wait = 0
	if b := bid(t, once); try(t, b) {
		t.Fatal("one too many")
	}
	next := contend(t, cfg)
	inLine(t, server, gate, 1)
	behind := contend(t, cfg)
	inLine(t, server, gate, 2)

	release(t, holders[1])
	h := next.held(t)
	if h.Slot() != 2 || delayed(next) {
		t.Errorf("slot 2 has come free, and %d is granted: %v", h.Slot(), next.said())
	}
	inLine(t, server, gate, 1)
	if !behind.waits() {
		t.Fatal("one too many")
	}

	// If a holder ends without a word, that is no clean end.
	tear(t, server, h)
	holdsAndWaits(t, behind)
	lock.ReportLost(t.Context(), h)
	second := behind.held(t)
	if second.Slot() != 2 {
		t.Errorf("slot 2 was torn away, and %d is granted", second.Slot())
	}
	if n := advisoryLocks(t, server); n != "3" {
		t.Errorf("%s locks, with three slots taken and nobody in line", n)
	}
	release(t, second)

	// A free slot is for those in line.
	psql := plain(t, dsn, "SELECT pg_advisory_lock("+gate.String()+")")
	if try(t, bid(t, once)) {
		t.Error("a newcomer passed the line")
	}
	run(t, psql, "SELECT pg_advisory_unlock("+gate.String()+")")
	newcomer := acquire(t, once)
	if newcomer.Slot() != 2 {
		t.Errorf("nobody is in line, slot 2 is free, and the newcomer has %d", newcomer.Slot())
	}

	// Runs with different numbers of slots share the slots that both have.
	fewer, more := config(t, dsn, slots(number, 2)), config(t, dsn, slots(number, 4))
	fewer.Wait, more.Wait = 0, 0
	if try(t, bid(t, fewer)) {
		t.Error("slots 1 and 2 are taken, also for whom there are no others")
	}
	if h := acquire(t, more); h.Slot() != 4 {
		t.Errorf("of four slots the last is free, and %d is granted", h.Slot())
	}
	// Through a pooler there is no line, and still no more than there are slots.
	if try(t, bid(t, inTransaction(once))) {
		t.Error("one too many, in a transaction")
	}
	release(t, holders[2])
	if h := acquire(t, inTransaction(once)); h.Slot() != 3 {
		t.Errorf("slot 3 is free, and in a transaction %d is granted", h.Slot())
	}
}

// TestLineOfSlots: at each time as many runs as there are slots go on, in the order in which they
// came.
func TestLineOfSlots(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), slots(101, 2))
	holders := []*lock.Held{acquire(t, cfg), acquire(t, cfg)}
	var line []*contender
	for i := range 6 {
		line = append(line, contend(t, cfg))
		inLine(t, server, *cfg.Claim.Gate, i+1)
	}
	for i := 0; len(line) > 0; i++ {
		released := time.Now()
		release(t, holders[i])
		var h *lock.Held
		h, line, _ = serve(t, line, released)
		holders = append(holders, h)
	}
}
