package lock_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
)

// TestIdleInLine: a waiter's session is idle, has no snapshot, and no request for a lock that isn't
// granted. The server's log says nothing of it, whatever other sessions do.
func TestIdleInLine(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"log_lock_waits": "on", "deadlock_timeout": "10ms", "log_min_messages": "warning"})
	dsn := server.DSN("postgres")
	query(t, server, "CREATE TABLE hot (n int)")
	log := func() string {
		text, err := os.ReadFile(server.LogPath())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	cfg := config(t, dsn, exclusive(7))
	h := acquire(t, cfg)
	var line []*contender
	for i := range 3 {
		line = append(line, contend(t, cfg))
		inLine(t, server, id(7), i+1)
	}
	before := log()
	app := plain(t, dsn)
	polls, snapshots := 0, 0
	for began := time.Now(); time.Since(began) < 4*time.Second; polls++ {
		run(t, app, "NOTIFY theirs, 'own'")
		run(t, app, "INSERT INTO hot VALUES (1)")
		if n := run(t, app, "SELECT count(*) FROM pg_locks WHERE NOT granted")[0]; n != "0" {
			t.Fatal("a lock is asked for that isn't granted")
		}
		// A waiter that is just looking is active for an instant.
		for _, state := range run(t, app, "SELECT state || CASE WHEN state = 'idle' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) THEN ' with a snapshot' ELSE '' END FROM pg_stat_activity WHERE application_name LIKE 'pglead:%'") {
			switch state {
			case "idle", "active":
			case "idle with a snapshot": // the view reads the two one after the other
				snapshots++
			default:
				t.Fatalf("a waiter or holder is %s", state)
			}
		}
	}
	if most := max(3, polls/20); snapshots > most {
		t.Errorf("waiters or holders were idle with a snapshot %d times in %d looks at all four", snapshots, polls)
	}
	for range 3 {
		eventually(t, "all are idle", func() bool {
			return run(t, app, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%' AND state = 'idle' AND backend_xmin IS NULL AND backend_xid IS NULL")[0] == "4"
		})
	}
	query(t, server, "CREATE INDEX CONCURRENTLY ON hot (n)")
	for _, next := range line {
		release(t, h)
		h = next.held(t)
	}
	release(t, h)
	if after := log(); after != before {
		t.Errorf("after %d rounds and %d handovers the server's log says\n%s", polls, len(line), strings.TrimPrefix(after, before))
	}
}

// TestLineOrder: 20 waiters get the lock in the order in which they came, though all of them see each
// end.
func TestLineOrder(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), 15*time.Second)
	h := acquire(t, cfg)
	const n = 20
	var line []*contender
	for i := range n {
		line = append(line, contend(t, cfg))
		eventually(t, fmt.Sprintf("%d in line", i+1), func() bool {
			return query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE classid = %d AND objsubid = 1 AND granted", advisory.TicketClass(id(7))))[0] == fmt.Sprint(i+1)
		})
	}
	inLine(t, server, id(7), n)
	for i := 0; len(line) > 0; i++ {
		if i == 5 { // by now fewer than all may listen, and the others have to see that
			looked(t, server, len(line))
		}
		released := time.Now()
		release(t, h)
		h.Close()
		h, line, _ = serve(t, line, released)
	}
	release(t, h)
}

// looked waits until so many waiters have looked again.
func looked(t *testing.T, server *localpg.Server, n int) {
	t.Helper()
	now := query(t, server, "SELECT clock_timestamp()")[0]
	eventually(t, "all have looked again", func() bool {
		return query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE classid = %d AND objsubid = 1 AND state = 'idle' AND query_start > '%s'",
			advisory.TicketClass(id(7)), now))[0] == fmt.Sprint(n)
	})
}

// frozenTicket takes a ticket like that of a waiter that came a while ago and does nothing.
func frozenTicket(t *testing.T, dsn string, of lockkey.ID, i int) {
	t.Helper()
	plain(t, dsn, fmt.Sprintf("SELECT pg_advisory_lock(%d::bigint << 32 | ((extract(epoch FROM clock_timestamp()) * 100)::bigint - %d & 4294967295))",
		int32(advisory.TicketClass(of)), 10_000*(i+1)))
}

// TestFirstIsFrozen: a waiter that is first in line and does nothing, as if it were stopped, does not cost
// the waiters behind it a lease.
func TestFirstIsFrozen(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	const frozen = 2
	cfg := leased(config(t, dsn, exclusive(7)), 60*time.Second)
	h := acquire(t, cfg)
	for i := range frozen {
		frozenTicket(t, dsn, id(7), i)
	}
	next := contend(t, cfg)
	inLine(t, server, id(7), 1)
	for i := range 3 {
		ended := time.Now()
		release(t, h)
		h.Close()
		h = next.held(t)
		if delayed(next) {
			t.Errorf("handover %d: %v", i, next.said())
		}
		if took := next.ended.Sub(ended); took > cfg.Session.Lease/5 {
			t.Errorf("handover %d, past %d who are frozen, took %v", i, frozen, took)
		}
		next = contend(t, cfg)
		inLine(t, server, id(7), 1)
	}
}

// TestNextInLineDies: the waiter that a clean end names is gone before it can try.
func TestNextInLineDies(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), 60*time.Second)
	h := acquire(t, cfg)
	named := contend(t, cfg)
	inLine(t, server, id(7), 1)
	next := contend(t, cfg)
	inLine(t, server, id(7), 2)
	ended := time.Now()
	named.stop()
	release(t, h)
	h = next.held(t)
	if took := next.ended.Sub(ended); took > cfg.Session.Lease/5 {
		t.Errorf("the next one took %v", took)
	}
	<-named.done
	if named.got != nil {
		t.Error("both have it")
	}
	release(t, h)
}

// inOrder ends a holder that both contenders have seen. Then the first gets the lock without a
// delay, and after it the second.
func inOrder(t *testing.T, h *lock.Held, first, second *contender) {
	t.Helper()
	release(t, h)
	h = first.held(t)
	if !second.waits() || delayed(first) {
		t.Errorf("after a clean end of one whom it has seen: %v", first.said())
	}
	release(t, h)
	second.held(t)
}

// TestReturnsToPlace: a waiter whose session is lost comes back to its place in line, and waits out the
// delay if it has heard nothing since.
func TestReturnsToPlace(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	h := acquire(t, cfg)
	first := contend(t, cfg)
	inLine(t, server, id(7), 1)
	second := contend(t, cfg)
	inLine(t, server, id(7), 2)
	tickets := func() []string {
		return query(t, server, fmt.Sprintf("SELECT objid FROM pg_locks WHERE classid = %d AND objsubid = 1 AND granted ORDER BY objid", advisory.TicketClass(id(7))))
	}
	before := tickets()
	query(t, server, fmt.Sprintf(`SELECT pg_terminate_backend(pid, 60000) FROM pg_locks WHERE classid = %d AND objsubid = 1 AND objid = %s`, advisory.TicketClass(id(7)), before[0]))
	inLine(t, server, id(7), 2)
	if after := tickets(); !slices.Equal(after, before) {
		t.Errorf("tickets %v before and %v after", before, after)
	}
	inOrder(t, h, first, second)
}

// TestFormerSessionIsEnded: a waiter loses its session, which the server still has. When it comes back it ends
// that session, and has its old place again.
func TestFormerSessionIsEnded(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), 10*longest) // otherwise the server would end the old session by itself
	h := acquire(t, cfg)
	r := newRelay(t, server)
	cut := cfg
	cut.Session = leased(config(t, r.dsn, exclusive(7)), 10*longest).Session
	first := contend(t, cut)
	inLine(t, server, id(7), 1)
	second := contend(t, cfg)
	inLine(t, server, id(7), 2)
	line := func() []string {
		return query(t, server, "SELECT objid || ' ' || pid "+inLineSQL(id(7), 1)+" AND granted ORDER BY objid")
	}
	ticket := func(of string) string { return strings.Fields(of)[0] }
	before := line()
	r.strand()
	eventually(t, "the first has another session in its place", func() bool {
		after := line()
		return len(after) == 2 && ticket(after[0]) == ticket(before[0]) && after[0] != before[0] && after[1] == before[1]
	})
	// The waiter has to look after it has taken its mark: otherwise it would have to ask for the
	// holder's role, and the holder's session is gone by then.
	eventually(t, "it listens, and has looked", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query ~ 'MATERIALIZED|EXECUTE|SELECT pg_catalog.pg_backend_pid..$' AND pid IN (SELECT pid "+inLineSQL(id(7), 2)+")")[0] == "2"
	})
	inOrder(t, h, first, second)
}

// TestServerRestarts: a waiter waits until the server is back, and a run that comes after the
// restart knows nothing.
func TestServerRestarts(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	cfg.LockDelay = 3 * time.Second
	acquire(t, cfg)
	next := contend(t, cfg)
	inLine(t, server, id(7), 1)
	if err := server.Stop(2); err != nil { // SIGINT
		t.Fatal(err)
	}
	stopped := time.Now()
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	next.held(t)
	if took := next.ended.Sub(stopped); took < cfg.LockDelay {
		t.Errorf("it started %v after the server's end, with a lock-delay of %v", took, cfg.LockDelay)
	}
}

// TestCloseWhileWaiting: a waiter that gives up leaves nothing at the server.
func TestCloseWhileWaiting(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	h := acquire(t, cfg)
	for _, claim := range []lock.Claim{exclusive(7), shared(7), exclusive(6, 7), slots(7, 1)} {
		of := cfg
		of.Claim = claim
		next := contend(t, of)
		line := claim.IDs[len(claim.IDs)-1]
		if claim.Gate != nil {
			line = *claim.Gate
		}
		inLine(t, server, line, 1)
		next.stop()
		<-next.done
		if next.got != nil {
			t.Fatal("the lock is granted twice")
		}
		eventually(t, "only the holder's lock is there", func() bool { return advisoryLocks(t, server) == "1" })
	}
	release(t, h)
}
