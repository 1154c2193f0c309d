package lock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
)

// TestDormant: in a line with dormant waiters each waiter gets the lock without a delay after a
// clean end, though commands are so brief that no look comes soon enough. No other test runs beside
// it: on a busy machine a call may be heard too late, and then a delay is right.
func TestDormant(t *testing.T) {
	server := start(t, map[string]string{"max_connections": "200"})
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), 15*time.Second)
	h := acquire(t, cfg)
	const behind, command = 10, 20 * time.Millisecond
	var line []*contender
	for range crowd.MostListeners + behind {
		line = append(line, contend(t, cfg))
	}
	inLine(t, server, id(7), len(line))
	eventually(t, "the first listen, and no others", func() bool {
		return query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE classid = %d AND objsubid = 2", advisory.TicketClass(id(7))))[0] == fmt.Sprint(crowd.MostListeners)
	})
	passing := passersBy(t, cfg)
	// A waiter or a holder calls only while the line has to wait for the dormant waiters.
	call := advisory.CallOf(id(7)).Number
	callers := fmt.Sprintf("SELECT count(*) FROM pg_locks AS call WHERE classid = %d AND objid = %d AND objsubid = 1", uint32(call>>32), uint32(call))
	called := sees(t, server, callers+" HAVING count(*) > 0") // also while release waits for a call to be heard
	began := time.Now()
	release(t, h)
	h.Close()
	for n := len(line); len(line) > 0; {
		var served []*contender
		eventually(t, "one is served without a delay", func() bool {
			for _, c := range line {
				if delayed(c) {
					t.Fatalf("the %dth of %d: %v", n-len(line)+1, n, c.said())
				}
				if !c.waits() {
					served = append(served, c)
				}
			}
			return len(served) > 0
		})
		for _, c := range served {
			time.Sleep(command)
			if n := query(t, server, callers+" AND EXISTS (SELECT FROM pg_locks AS held WHERE held.pid = call.pid AND held.classid = 0 AND held.granted)")[0]; n != "0" {
				t.Errorf("%s of those who hold the lock, and run their command, call", n)
			}
			release(t, c.held(t))
			c.got.Close()
		}
		line = slices.DeleteFunc(line, func(c *contender) bool { return slices.Contains(served, c) })
		if len(line) < behind/2 {
			passing() // otherwise one of them might get the lock
		}
	}
	if !called() {
		t.Error("nobody has called")
	}
	// Each dormant waiter hears the call within the time between two heartbeats.
	if took, most := time.Since(began), 30*time.Second; took > most {
		t.Errorf("all were served within %v, which should take %v at most", took, most)
	}
}

// sees asks a question again and again until the returned function is called, which says whether it
// ever had an answer.
func sees(t *testing.T, server *localpg.Server, sql string) (ever func() bool) {
	t.Helper()
	conn := plain(t, server.DSN("postgres"))
	over, done, seen := make(chan struct{}), make(chan struct{}), false
	go func() {
		defer close(done)
		for ; !seen; time.Sleep(time.Millisecond) {
			select {
			case <-over:
				return
			default:
			}
			rows, err := localpg.Ask(context.Background(), conn, sql)
			if err != nil {
				t.Error(err)
				return
			}
			seen = len(rows) > 0
		}
	}()
	stop := sync.OnceFunc(func() { close(over); <-done })
	t.Cleanup(stop)
	return func() bool {
		stop()
		return seen
	}
}

// passersBy come to the end of the line, one after the other, and soon give up. Each listens for a
// moment.
func passersBy(t *testing.T, cfg lock.Config) (stop func()) {
	t.Helper()
	cfg.Wait, cfg.LockDelay = 30*time.Millisecond, 0 // its last try may be granted, and it has heard nothing
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			default:
			}
			if h, err := lock.NewCandidate(cfg).Acquire(t.Context(), nil); err == nil { // it has tried between two holders
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
				h.Close()
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(over)
		<-done
	})
	t.Cleanup(stop)
	return stop
}

// TestReleaseWithoutCall: a holder whose call the server rejects, perhaps since its lock table is
// full, releases the lock all the same.
func TestReleaseWithoutCall(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"max_connections": "200"})
	cfg := config(t, as(t, server, "cron"), exclusive(7))
	h := acquire(t, cfg)
	var line []*contender
	for range crowd.MostListeners + 5 {
		line = append(line, contend(t, cfg))
	}
	inLine(t, server, id(7), len(line))
	release(t, h)
	h.Close()
	i := -1
	eventually(t, "one of those in line has it", func() bool {
		i = slices.IndexFunc(line, func(c *contender) bool { return !c.waits() })
		return i >= 0
	})
	next := line[i].held(t) // some behind it are dormant
	query(t, server, "REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock_shared(bigint) FROM PUBLIC")
	for _, c := range line { // without the right to call they would fail
		if c != line[i] {
			c.stop()
		}
	}
	release(t, next)
	if got := run(t, plain(t, server.DSN("postgres")), "SELECT pg_try_advisory_lock(7)::text"); got[0] != "true" {
		t.Error("the lock is not free")
	}
}

// TestDormantAfterWatch: a waiter that has watched the holder, and suddenly has a long line before
// it, hears calls.
func TestDormantAfterWatch(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	cfg := leased(config(t, dsn, exclusive(7)), longest) // with a shorter lease it would look again
	acquire(t, cfg)
	contend(t, cfg)
	inLine(t, server, id(7), 1)
	asks := func(what string) func() bool {
		return func() bool {
			return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%' AND query LIKE '%"+what+"%'")[0] == "1"
		}
	}
	eventually(t, "it watches", asks("EXECUTE pglead"))
	for i := range crowd.MostListeners + 1 { // others have come back to their places after an outage
		frozenTicket(t, dsn, id(7), i)
	}
	plain(t, dsn, "SELECT pg_notify('pglead.1.7', 'started 99 6000 0')") // which makes it look
	eventually(t, "it asks whether somebody calls", asks(fmt.Sprintf("pg_try_advisory_xact_lock(%d)", advisory.CallOf(id(7)).Number)))
}

// TestDormantForgets: a waiter for several locks has seen the holder of one of them before it became
// dormant. Nobody tells it of that holder's end, so that lock is not like one that it never asked for.
func TestDormantForgets(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"max_connections": "200"})
	dsn := server.DSN("postgres")
	first, second := acquire(t, config(t, dsn, exclusive(7))), acquire(t, config(t, dsn, exclusive(8)))
	var line []*contender
	for range crowd.MostListeners {
		line = append(line, contend(t, config(t, dsn, exclusive(7))))
	}
	inLine(t, server, id(7), len(line))
	waiter := contend(t, config(t, dsn, exclusive(7, 8)))
	inLine(t, server, id(7), len(line)+1)
	listen := func(n int) func() bool {
		return func() bool {
			return query(t, server, fmt.Sprintf("SELECT count(*) %s AND objid <> %d", inLineSQL(id(7), 2), advisory.CommonTicket))[0] == fmt.Sprint(n)
		}
	}
	eventually(t, "the last is dormant", listen(len(line)))
	tear(t, server, second)
	for _, c := range line {
		c.stop()
	}
	for _, c := range line {
		<-c.done
	}
	eventually(t, "it is the first now, and listens", listen(1))
	release(t, first)
	waitsBeside(t, waiter)
}
