package lock_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
)

// silenced returns a holder whose relay to the server has gone silent, and a contender that waits
// for the lock.
func silenced(t *testing.T, server *localpg.Server, holding, waiting lock.Config) (h *lock.Held, next *contender, since time.Time) {
	t.Helper()
	r := newRelay(t, server)
	relayed := config(t, r.dsn, holding.Claim)
	relayed.Session.Database.User = holding.Session.Database.User
	holding.Session.Database = relayed.Session.Database
	h = acquire(t, holding)
	next = contend(t, waiting)
	inLine(t, server, holding.Claim.IDs[0], 1)
	beat := func() string {
		return query(t, server, fmt.Sprintf("SELECT query FROM pg_stat_activity WHERE pid = %d", h.Session.BackendPID()))[0]
	}
	first := beat()
	eventually(t, "the holder's heartbeat shows", func() bool { return beat() != first })
	last := time.Now() // no request of it arrives later
	r.silence()
	return h, next, last
}

// sawSilence waits until a waiter has taken over from a holder that it has seen to be silent. That
// must not happen before the holder's command is dead by the holder's own clock, and has to happen
// before the server would end the session.
func sawSilence(t *testing.T, next *contender, since time.Time, lease time.Duration) {
	t.Helper()
	next.held(t)
	took := next.ended.Sub(since)
	if took < leasetime.DeadAfter(lease, 0)-leasetime.BeatEvery(lease) {
		t.Errorf("taken over %v after the last heartbeat: its command may be alive", took)
	}
	if took >= lease {
		t.Errorf("taken over %v after the last heartbeat, with a lease of %v", took, lease)
	}
	const ended = "the holder has been silent for as long as its command can live: its session is ended"
	if events := next.said(); !slices.Equal(events, []string{"waiting", "silent"}) || next.texts[1] != ended {
		t.Errorf("it said %v: %q", events, next.texts)
	}
}

// TestSilentHolder: a waiter takes over from a holder that is cut off, once the holder's command is
// dead by the holder's own clock, and before the server would end its session.
func TestSilentHolder(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	cfg := leased(config(t, dsn, exclusive(1)), 15*time.Second)
	cfg.LockDelay = 2 * time.Second // shorter than what the holder's settings require
	h, next, since := silenced(t, server, cfg, cfg)
	sawSilence(t, next, since, cfg.Session.Lease)
	<-h.Lost()
	if d := time.Since(next.ended); d < 0 {
		t.Errorf("the holder thought that it had the lock for %v after that", d)
	}
}

// TestSilenceBehindFrozen: the second in line takes over from a silent holder if the
// first does nothing, and before the server would end the holder's session.
func TestSilenceBehindFrozen(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"datestyle": "SQL, DMY", "timezone": "Asia/Shanghai"}) // the server writes this zone as CST, and would read that as another one
	dsn := server.DSN("postgres")
	cfg := leased(config(t, dsn, exclusive(1)), 15*time.Second)
	cfg.LockDelay = 2 * time.Second
	frozenTicket(t, dsn, id(1), 0)
	_, next, since := silenced(t, server, cfg, cfg)
	sawSilence(t, next, since, cfg.Session.Lease)
}

// TestSilentAtOnce: a waiter takes over as soon from a holder that is cut off just after its start
// as from any other, even if the waiter was too far back in line to watch the holders before.
func TestSilentAtOnce(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"first in line": 0, "moved up": 3, "one with an earlier ticket comes": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			cfg := leased(config(t, server.DSN("postgres"), exclusive(1)), 30*time.Second)
			cfg.LockDelay = 2 * time.Second
			h := acquire(t, cfg)
			r := newRelay(t, server)
			relayed := cfg
			relayed.Session.Database = config(t, r.dsn, cfg.Claim).Session.Database
			var others []*contender
			for i := range before {
				others = append(others, contend(t, cfg))
				inLine(t, server, id(1), i+1)
			}
			brief := contend(t, relayed)
			inLine(t, server, id(1), before+1)
			next := contend(t, cfg)
			inLine(t, server, id(1), before+2)
			release(t, h)
			for _, o := range others {
				release(t, o.held(t))
			}
			silent := brief.held(t)
			since := time.Now()
			r.silence()
			if strings.Contains(name, "earlier") { // as when the server's clock is set back
				watching := fmt.Sprintf("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'pglead:%%' AND query LIKE '%%EXECUTE pglead%%(%d, %%'", silent.Session.BackendPID())
				eventually(t, "the first in line watches", func() bool { return len(query(t, server, watching)) > 0 })
				earlier := uint32(time.Now().Add(-time.Minute).UnixMilli() / 10)
				number := int64(advisory.TicketClass(id(1)))<<32 | int64(earlier)
				if _, err := open(t, cfg).Query(t.Context(), fmt.Sprintf("SELECT pg_advisory_lock(%d)", number)); err != nil {
					t.Fatal(err)
				}
			}
			next.held(t)
			const bound, slack = 2 * time.Second, 2 * time.Second // see runner/README.md; of a busy machine
			if took, most := next.ended.Sub(since), leasetime.DeadAfter(cfg.Session.Lease, 0)+bound+slack; took > most {
				t.Errorf("taken over %v after that, and not after %v at most", took, most)
			}
		})
	}
}

// TestSilenceUnseen: a role that sees nothing of the holder waits for the server's
// time-out, and then for the delay.
func TestSilenceUnseen(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	holding := config(t, as(t, server, "holders"), exclusive(1))
	waiting := config(t, as(t, server, "waiters"), exclusive(1))
	holding.LockDelay, waiting.LockDelay = 4*time.Second, 4*time.Second
	_, next, since := silenced(t, server, holding, waiting)
	next.held(t)
	if took := next.ended.Sub(since); took < lease-leasetime.BeatEvery(lease)+waiting.LockDelay {
		t.Errorf("taken over %v after the last heartbeat", took)
	}
	if !slices.Equal(next.said(), []string{"waiting", "delayed"}) {
		t.Errorf("it said %v", next.said())
	}
}

// TestSilenceWithoutTheRight: a role that sees the holder and may not end its session
// leaves that to the server. Many tries at once would be in vain until then.
func TestSilenceWithoutTheRight(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"log_statement": "all"})
	holding := config(t, server.DSN("postgres"), exclusive(1)) // a superuser
	for number, grant := range map[int64]string{2: "pg_read_all_stats", 3: localpg.Superuser} {
		waiting := config(t, as(t, server, fmt.Sprintf("waiters%d", number)), exclusive(number))
		query(t, server, fmt.Sprintf("GRANT %s TO waiters%d", grant, number))
		holding.Claim = exclusive(number)
		holding.LockDelay, waiting.LockDelay = time.Second, time.Second
		_, next, since := silenced(t, server, holding, waiting)
		next.held(t)
		if took := next.ended.Sub(since); took < leasetime.DeadAfter(lease, 0)-leasetime.BeatEvery(lease) {
			t.Errorf("%s: taken over %v after the last heartbeat", grant, took)
		}
		const left = "the holder has been silent for as long as its command can live: its session, which this role may not end, is left to the server"
		if events := next.said(); !slices.Equal(events, []string{"waiting", "silent"}) || next.texts[1] != left {
			t.Errorf("%s: it said %v: %q", grant, events, next.texts)
		}
	}
	statements, err := os.ReadFile(server.LogPath())
	if err != nil || !bytes.Contains(statements, []byte("pg_terminate_backend(pid) ELSE false END")) {
		t.Errorf("the server's log shows no statement that ends a silent session: %v", err)
	}
	if bytes.Contains(statements, []byte("generate_series(0, 49)")) { // as in burstQuery; its warm-up has another number
		t.Error("it made many tries at once")
	}
}

// TestSilenceAfterBareStatement: a holder is silent that has shown no beat at the waiter's first look,
// as just after a statement without a comment. A second look soon shows its beat.
func TestSilenceAfterBareStatement(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	cfg.LockDelay = 4 * time.Second
	holder := plain(t, server.DSN("postgres"), "SELECT pg_advisory_lock(7)")
	next := contend(t, cfg)
	inLine(t, server, id(7), 1)
	run(t, holder, fmt.Sprintf("/*pglead beat='5',lease='%v'*/ SELECT 1", lease))
	spoke := time.Now()
	next.held(t)
	if took, most := next.ended.Sub(spoke), 3*lease; took < leasetime.DeadAfter(lease, 0) || took > most {
		t.Errorf("taken over after %v, and not within %v", took, most)
	}
	if events := next.said(); !slices.Equal(events, []string{"waiting", "silent"}) {
		t.Errorf("it said %v", events)
	}
}

// TestStartDuringSilence: a start that is heard after the look which proves a holder's silence still
// counts when that holder's session is ended: a server that ends a session frees its lock first, and
// somebody else may have it. Until then the waiter leaves the holder the time for its kill twice,
// since a busy machine may kill late.
func TestStartDuringSilence(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	plain(t, dsn, "SELECT pg_advisory_lock(7)", fmt.Sprintf("/*pglead beat='5',lease='%v'*/ SELECT 1", lease))
	starter := plain(t, dsn)
	var looked, ends time.Time
	waiting := config(t, newSlowRelay(t, server, func(sql string) string {
		switch {
		case strings.Contains(sql, "MATERIALIZED") && looked.IsZero():
			looked = time.Now()
		case strings.Contains(sql, "pg_terminate_backend(pid) ELSE false END"):
			ends = time.Now()
			run(t, starter, fmt.Sprintf("SELECT pg_notify('pglead.1.7', 'started %d %d 0')", int64(1)<<48|9999, lease.Milliseconds()))
		}
		return sql
	}), exclusive(7))
	waiting.LockDelay = time.Second // shorter than what the holder's settings require
	next := contend(t, waiting)
	waitsBeside(t, next)
	if !slices.Contains(next.said(), "silent") {
		t.Fatalf("it said %v", next.said())
	}
	if silent, least := ends.Sub(looked), leasetime.DeadAfter(lease, 0)+leasetime.ForKill(lease); silent < least {
		t.Errorf("the session is ended %v after the first look at it, and not after %v", silent, least)
	}
}

// TestSpokeAfterAll: a holder that speaks again just before its session would be ended for its silence
// has not been silent: its session goes on, and its command may be alive when the lock comes free.
func TestSpokeAfterAll(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	says := func(beat int) string { return fmt.Sprintf("/*pglead beat='%d',lease='%v'*/ SELECT 1", beat, lease) }
	holder := plain(t, dsn, "SELECT pg_advisory_lock(7)", says(5))
	spoke := make(chan struct{})
	waiting := config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.Contains(sql, "pg_terminate_backend(pid) ELSE false END") {
			select {
			case <-spoke:
			default:
				run(t, holder, says(6))
				close(spoke)
			}
		}
		return sql
	}), exclusive(7))
	waiting.LockDelay = time.Second
	next := contend(t, waiting)
	select {
	case <-spoke:
	case <-time.After(longest):
		t.Fatal("nobody would end its session")
	}
	run(t, holder, "SELECT pg_advisory_unlock(7)")
	waitsBeside(t, next)
	if slices.Contains(next.said(), "silent") {
		t.Errorf("it said %v: %q", next.said(), next.texts)
	}
}

// TestListShowsItself: a list's session shows others that it is alive, and how long its commands outlive
// a lock, also after it has stopped listening for an item: an UNLISTEN has no comment.
func TestListShowsItself(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	listed := staying(config(t, server.DSN("postgres"), exclusive(1)))
	s := open(t, listed)
	held, heard := lock.NewBid(s, listed, false), listed
	heard.Claim = exclusive(2)
	if !try(t, held) {
		t.Fatal("a free lock is refused")
	}
	listening := lock.NewBid(s, heard, false)
	if err := listening.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !try(t, listening) {
		t.Fatal("a free lock is refused")
	}
	h, err := listening.Settle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := listening.Unlisten(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := query(t, server, fmt.Sprintf("SELECT query FROM pg_stat_activity WHERE pid = %d", s.BackendPID()))[0]; !strings.HasPrefix(text, "/*pglead beat=") {
		t.Errorf("it shows %s", text)
	}
}
