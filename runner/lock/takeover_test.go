package lock_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
)

// delayed says whether a contender has held the lock for a while before its start.
func delayed(c *contender) bool { return slices.Contains(c.said(), "delayed") }

// holdsAndWaits waits until a contender has been granted a lock, and may wait its delay out.
func holdsAndWaits(t *testing.T, c *contender) {
	t.Helper()
	eventually(t, "it is granted the lock, and waits for what is left of the command before", func() bool { return delayed(c) })
	if !c.waits() {
		t.Fatal("it has not waited")
	}
}

// TestCleanEnd: after a clean end the first in line starts at once, again and again.
func TestCleanEnd(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	h := acquire(t, cfg)
	for i := range 20 {
		next := contend(t, cfg)
		inLine(t, server, id(7), 1)
		token := h.Token
		release(t, h)
		h.Close()
		h = next.held(t)
		if delayed(next) {
			t.Fatalf("handover %d, after a clean end: %v", i, next.said())
		}
		if h.Token <= token {
			t.Errorf("token %d after %d", h.Token, token)
		}
	}
	release(t, h)
	if n := advisoryLocks(t, server); n != "0" {
		t.Errorf("%s locks stay", n)
	}
}

// TestForcedEnd: without a word about a holder's death nobody starts before the delay is over. With
// such a word from a session of the holder's role, or of the waiter's own, the next one starts at
// once.
func TestForcedEnd(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	holders, waiters, strangers := as(t, server, "holders"), as(t, server, "waiters"), as(t, server, "strangers")
	end := func(t *testing.T, number int64, before, by string) (h *lock.Held, next *contender) {
		t.Helper()
		h = acquire(t, config(t, before, exclusive(number)))
		next = contend(t, config(t, by, exclusive(number)))
		inLine(t, server, id(number), 1)
		tear(t, server, h)
		holdsAndWaits(t, next)
		return h, next
	}
	word := func(number int64, e string, token int64) string {
		return fmt.Sprintf("NOTIFY \"pglead.1.%d\", '%s %d 6000 0'", number, e, token)
	}
	t.Run("the last word", func(t *testing.T) {
		h, next := end(t, 1, holders, holders)
		lock.ReportLost(t.Context(), h)
		next.held(t)
	})
	t.Run("the last word, to another role", func(t *testing.T) {
		h, next := end(t, 2, holders, waiters)
		lock.ReportLost(t.Context(), h)
		next.held(t)
	})
	t.Run("dead, of the waiter's role", func(t *testing.T) {
		h, next := end(t, 3, holders, waiters)
		defer plain(t, waiters, word(3, "dead", h.Token)).Close(t.Context())
		next.held(t)
	})
	t.Run("dead, of an earlier token", func(t *testing.T) {
		h, next := end(t, 4, holders, waiters)
		conn := plain(t, holders, word(4, "dead", h.Token-1))
		stays(t, next, 2*time.Second)
		run(t, conn, word(4, "dead", h.Token))
		next.held(t)
	})
	t.Run("no word", func(t *testing.T) {
		cfg := config(t, holders, exclusive(5))
		cfg.LockDelay = 4 * time.Second
		h := acquire(t, cfg)
		next := contend(t, cfg)
		inLine(t, server, id(5), 1)
		torn := time.Now()
		tear(t, server, h)
		// A stranger's word doesn't count.
		plain(t, strangers, word(5, "dead", h.Token), word(5, "clean", h.Token))
		next.held(t)
		if d := next.ended.Sub(torn); d < cfg.LockDelay {
			t.Errorf("started %v after the end, with a lock-delay of %v", d, cfg.LockDelay)
		}
	})
}

// stays makes sure that a contender goes on waiting for a while.
func stays(t *testing.T, c *contender, d time.Duration) {
	t.Helper()
	select {
	case <-c.done:
		t.Fatalf("it has started: %v, %v", c.err, c.said())
	case <-time.After(d):
	}
}

// TestStrangers: what a session of another role says of a lock shortens no delay, whether it speaks
// while the lock is held or during the delay, stands in line, or says the holder's process number.
func TestStrangers(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	holders, waiters, strangers := as(t, server, "holders"), as(t, server, "waiters"), as(t, server, "strangers")
	for i, inItsLine := range []bool{false, true} {
		number := int64(i + 1)
		t.Run(fmt.Sprintf("in line %v", inItsLine), func(t *testing.T) {
			h := acquire(t, config(t, holders, exclusive(number)))
			next := contend(t, config(t, waiters, exclusive(number)))
			inLine(t, server, id(number), 1)
			conn := plain(t, strangers)
			if inItsLine { // behind the other one, whose ticket has the time of the clock
				run(t, conn, fmt.Sprintf("SELECT pg_advisory_lock(%d::bigint << 32 | ((extract(epoch FROM clock_timestamp()) * 100)::bigint & 4294967295))", int32(advisory.TicketClass(id(number)))))
				inSight(t, server, next)
			}
			say := func() {
				for _, e := range []string{"clean", "dead", "left"} {
					for _, more := range []string{"", " all", fmt.Sprintf(" to=%d", h.Session.BackendPID())} {
						run(t, conn, fmt.Sprintf("NOTIFY \"pglead.1.%d\", '%s %d 6000 0%s'", number, e, int64(1)<<62, more))
						run(t, conn, fmt.Sprintf("NOTIFY \"pglead.1.%d\", '%s %d 6000 0%s'", number, e, h.Token, more))
					}
				}
			}
			say()
			tear(t, server, h)
			say()
			holdsAndWaits(t, next)
			say()
			stays(t, next, 3*time.Second)
			lock.ReportLost(t.Context(), h)
			next.held(t)
		})
	}
}

// inSight waits for as long as the first in line takes to look again, which it does every four
// leases. A look that another request follows at once is not seen here, so several may go by.
func inSight(t *testing.T, server *localpg.Server, c *contender) {
	t.Helper()
	joined := query(t, server, "SELECT clock_timestamp()")[0]
	looked := "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_lock_status%' AND application_name LIKE 'pglead:%' AND query_start > '" + joined + "'"
	for began := time.Now(); query(t, server, looked)[0] == "0"; time.Sleep(10 * time.Millisecond) {
		if !c.waits() || time.Since(began) > 5*4*lease {
			t.Fatalf("it does not look again; it says %v", c.said())
		}
	}
}

// TestForeignHolder: when a holder that is no pglead ends, nothing is known of it, even if it came
// between two pgleads.
func TestForeignHolder(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	psql := plain(t, dsn, "SELECT pg_advisory_lock(1)")
	next := contend(t, config(t, dsn, exclusive(1)))
	inLine(t, server, id(1), 1)
	run(t, psql, "SELECT pg_advisory_unlock(1)")
	holdsAndWaits(t, next)

	// After a clean end that the waiter has heard of, the next one is refused.
	h := acquire(t, config(t, dsn, exclusive(2)))
	next = contend(t, config(t, dsn, exclusive(2)))
	inLine(t, server, id(2), 1)
	queued := plain(t, dsn)
	done := make(chan error, 1)
	go func() {
		_, err := queued.Exec(t.Context(), "SELECT pg_advisory_lock(2)").ReadAll()
		done <- err
	}()
	eventually(t, "a migration tool stands in the server's queue", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")[0] == "1"
	})
	release(t, h)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the waiter has tried, and looked who has it", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%' AND query LIKE '%pg_lock_status%' AND state = 'idle'")[0] == "1"
	})
	stays(t, next, 2*time.Second)
	run(t, queued, "SELECT pg_advisory_unlock(2)")
	holdsAndWaits(t, next)
}

// TestNewcomer: T1 is torn from the lock, and T2, a newcomer whose first try was granted, ends
// clean. A waiter that knew of T1 still waits for it.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	for i, covers := range []bool{false, true} {
		number := int64(i + 1)
		cfg := config(t, dsn, exclusive(number))
		h := acquire(t, cfg)
		next := contend(t, cfg)
		inLine(t, server, id(number), 1)
		// The newcomer stands first in the server's own queue, which no pglead does. It announces
		// what a pglead whose first try was granted would announce.
		psql := plain(t, dsn)
		granted := make(chan error, 1)
		go func() {
			_, err := psql.Exec(t.Context(), fmt.Sprintf("SELECT pg_advisory_lock(%d)", number)).ReadAll()
			granted <- err
		}()
		eventually(t, "the newcomer is in line", func() bool {
			return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")[0] == "1"
		})
		tear(t, server, h)
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
		field := ""
		if covers { // it has waited for T1
			field = " all"
		}
		say := func(e, field string) string {
			return fmt.Sprintf("NOTIFY \"pglead.1.%d\", '%s %d 6000 0%s'", number, e, h.Token+1, field)
		}
		run(t, psql, say("started", ""))
		run(t, psql, say("clean", field))
		run(t, psql, fmt.Sprintf("SELECT pg_advisory_unlock(%d)", number))
		if covers {
			next.held(t)
		} else {
			holdsAndWaits(t, next)
		}
	}
}

// TestRepeatedWords: a stranger that says again and again that the lock comes free does not put off
// a waiter's turn, whether dead tickets are before the waiter or not.
func TestRepeatedWords(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(1))
	h := acquire(t, cfg)
	stranger := plain(t, as(t, server, "stranger"))
	const before = 4
	for i := range before {
		ticket := int64(advisory.TicketClass(id(1)))<<32 | int64(uint32(time.Now().UnixMilli()/10)-1000-uint32(i))
		run(t, stranger, fmt.Sprintf("SELECT pg_advisory_lock(%d)", ticket))
	}
	next := contend(t, cfg)
	inLine(t, server, id(1), 1)
	release(t, h)
	for range 100 { // ten seconds; its turn comes after 1.2
		run(t, stranger, fmt.Sprintf("NOTIFY \"pglead.1.1\", 'clean %d 6000 0'", h.Token))
		select {
		case <-next.done:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	t.Error("it has not had its turn")
}

// TestStartWithinDelay: a run that starts before its delay is over, since it has heard of its
// predecessor's end alone, can't say at its own end that the commands of all earlier holders are
// dead.
func TestStartWithinDelay(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	hearer := openOnly(t, cfg)
	var said []string // by the session's reader, before each answer
	hearer.OnNotify("pglead.1.7", func(_ uint32, payload string) { said = append(said, payload) })
	if _, err := hearer.Query(t.Context(), `LISTEN "pglead.1.7"`); err != nil {
		t.Fatal(err)
	}
	h := acquire(t, cfg) // at its first try, so it knows nothing of earlier ones
	early := contend(t, cfg)
	inLine(t, server, id(7), 1)
	tear(t, server, h)
	holdsAndWaits(t, early)
	lock.ReportLost(t.Context(), h)
	held := early.held(t)
	contend(t, cfg) // otherwise nothing is said
	inLine(t, server, id(7), 1)
	release(t, held)
	if _, err := hearer.Query(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	end := slices.IndexFunc(said, func(s string) bool { return strings.HasPrefix(s, fmt.Sprintf("clean %d ", held.Token)) })
	if end < 0 || strings.Contains(said[end], " all") {
		t.Errorf("it said %q", said)
	}
}

// TestLostReader: nobody is told that a reader which has lost its lock is dead, unlike a writer: its
// word could speak for earlier readers, whose commands may be alive.
func TestLostReader(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	for name, claim := range map[string]lock.Claim{"reader": shared(7), "writer": exclusive(7)} {
		cfg := config(t, server.DSN("postgres"), claim)
		hearer := openOnly(t, cfg)
		var said []string // by the session's reader, before each answer
		hearer.OnNotify("pglead.1.7", func(_ uint32, payload string) { said = append(said, payload) })
		if _, err := hearer.Query(t.Context(), `LISTEN "pglead.1.7"`); err != nil {
			t.Fatal(err)
		}
		h := acquire(t, cfg)
		tear(t, server, h)
		<-h.Lost()
		lock.ReportLost(t.Context(), h)
		if _, err := hearer.Query(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		var want []string
		if !claim.Shared {
			want = []string{fmt.Sprintf("dead %d %d 0", h.Token, lease.Milliseconds())}
		}
		if !slices.Equal(said, want) {
			t.Errorf("%s: heard %q, want %q", name, said, want)
		}
	}
}

// TestReusedNumber: the report of a lost run ends its session, if the server still has it, but
// no other session that has its number by now. Here the run's own looks like another's.
func TestReusedNumber(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	h := acquire(t, config(t, server.DSN("postgres"), exclusive(7)))
	if _, err := h.Session.Query(t.Context(), fmt.Sprintf("SET application_name = 'pglead:#%d test@here'", h.Token+1)); err != nil {
		t.Fatal(err)
	}
	lock.ReportLost(t.Context(), h)
	if _, err := h.Session.Query(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("another's session was ended: %v", err)
	}
}
