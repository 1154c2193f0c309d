package lock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
)

// requests returns how many requests the only waiter in a line has made.
func requests(t *testing.T, server *localpg.Server, line lockkey.ID) uint64 {
	t.Helper()
	text := query(t, server, fmt.Sprintf("SELECT query FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND classid = %d AND objsubid = 1", advisory.TicketClass(line)))
	if len(text) != 1 {
		t.Fatalf("in line: %q", text)
	}
	d, _ := describe.Parse(text[0])
	return d.Request
}

// TestFewRequests: a waiter asks once for each heartbeat of the holder, and little besides.
func TestFewRequests(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	acquire(t, cfg)
	contend(t, cfg)
	inLine(t, server, id(7), 1)
	const beats = 15
	first, began := requests(t, server, id(7)), time.Now()
	eventually(t, "it asks", func() bool { return requests(t, server, id(7)) >= first+beats })
	if took, least := time.Since(began), 10*leasetime.BeatEvery(lease); took < least {
		t.Errorf("%d requests in %v, with a heartbeat each %v", beats, took, leasetime.BeatEvery(lease))
	}
}

// TestSilentEnds: the lock comes free without a word. The first in line finds that out long before
// its next whole look.
func TestSilentEnds(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	cfg := leased(config(t, dsn, exclusive(7)), 15*time.Second)
	cfg.LockDelay = time.Second
	const slack = 5 * time.Second // of a busy machine
	h := acquire(t, cfg)
	next := contend(t, cfg)
	inLine(t, server, id(7), 1)
	ended := time.Now()
	tear(t, server, h)
	next.held(t)
	dead := leasetime.DeadAfter(cfg.Session.Lease, 0)
	if took, most := next.ended.Sub(ended), dead+leasetime.BeatEvery(cfg.Session.Lease)+slack; took < dead || took > most {
		t.Errorf("taken over from another pglead after %v", took)
	}

	cfg.Claim = exclusive(8)
	plain(t, dsn, "SELECT pg_advisory_lock(8)")
	next = contend(t, cfg)
	inLine(t, server, id(8), 1)
	ended = time.Now()
	query(t, server, "SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = 8")
	next.held(t)
	if took := next.ended.Sub(ended); took < cfg.LockDelay || took > time.Second+cfg.LockDelay+slack {
		t.Errorf("taken over from another program after %v", took)
	}
}

// TestToldInTime: with a long lease the first in line looks rarely, but who has the lock is told each
// minute.
func TestToldInTime(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), 5*time.Minute)
	acquire(t, cfg)
	told := make(chan time.Time, 10)
	cfg.Observer.Waiting = func(_ uint32, views []inspect.View) {
		if holders, _, _ := inspect.InLine(views, 0); len(holders) == 1 {
			told <- time.Now()
		}
	}
	contend(t, cfg)
	first := <-told
	select {
	case second := <-told:
		if second.Sub(first) < 30*time.Second {
			t.Errorf("again after %v", second.Sub(first))
		}
	case <-time.After(2 * time.Minute):
		t.Error("not told again for two minutes")
	}
}
