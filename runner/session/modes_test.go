package session_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/pgtest"
	"github.com/pglead/pglead/runner/session"
)

// pairID is the lock of pg_advisory_lock(first, second).
func pairID(first, second int32) lockkey.ID {
	return lockkey.ID{Number: int64(first)<<32 | int64(uint32(second)), Pair: true}
}

func shared(number int64) session.Claim {
	return session.Claim{Locks: []session.Lock{{ID: lockkey.ID{Number: number}, Shared: true}}}
}

// slots is a claim to one of n locks from number on; the one before is the gate.
func slots(number int64, n int) session.Claim {
	c := session.Claim{Gate: &lockkey.ID{Number: number - 1}}
	for i := range n {
		c.Locks = append(c.Locks, session.Lock{ID: lockkey.ID{Number: number + int64(i)}})
	}
	return c
}

// inTransaction opens a session that holds its locks in a transaction.
func inTransaction(t *testing.T, dsn string) tested {
	t.Helper()
	cfg := config(t, dsn)
	cfg.Transaction = true
	return openWith(t, cfg)
}

func unlock(t *testing.T, h *session.Hold, clean bool) {
	t.Helper()
	if err := h.Unlock(t.Context(), clean); err != nil {
		t.Fatal(err)
	}
}

// waitFor waits in the server's queue, and returns when it does. The channel
// has the end of the wait.
func waitFor(t *testing.T, server *pgtest.Server, h *session.Hold) <-chan error {
	t.Helper()
	count := func() string {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')")[0]
	}
	before := count()
	result := make(chan error, 1)
	go func() {
		granted, err := h.Wait(context.Background(), time.Minute)
		if err == nil && !granted {
			err = errors.New("not granted")
		}
		result <- err
	}()
	eventually(t, "the waiter waits", func() bool { return count() != before })
	return result
}

func advisoryLocks(t *testing.T, server *pgtest.Server) string {
	t.Helper()
	return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0]
}

// TestConflicts: who shares bars only who doesn't, whatever way either holds
// the lock and however it is numbered.
func TestConflicts(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	opens := map[string]func(*testing.T, string) tested{"session": open, "transaction": inTransaction}
	for _, id := range []lockkey.ID{{Number: -7}, pairID(-1, 7)} {
		for holderMode, openHolder := range opens {
			for otherMode, openOther := range opens {
				for _, holderShares := range []bool{false, true} {
					for _, otherShares := range []bool{false, true} {
						holder := openHolder(t, dsn)
						other := openOther(t, dsn)
						held := holder.Claim(session.Claim{Locks: []session.Lock{{ID: id, Shared: holderShares}}})
						asked := other.Claim(session.Claim{Locks: []session.Lock{{ID: id, Shared: otherShares}}})
						name := fmt.Sprintf("lock %s, held in a %s (shared %v), asked for in a %s (shared %v)", id, holderMode, holderShares, otherMode, otherShares)
						if !try(t, held) {
							t.Fatalf("%s: not free", name)
						}
						confirm(t, held)
						want := holderShares && otherShares
						if got := try(t, asked); got != want {
							t.Errorf("%s: %v", name, got)
						}
						unlock(t, held, true)
						if !want && !try(t, asked) {
							t.Errorf("%s: still held after its release", name)
						}
						unlock(t, asked, false)
						if n := advisoryLocks(t, server); n != "0" {
							t.Fatalf("%s: %s locks stay", name, n)
						}
					}
				}
			}
		}
	}
}

// TestPairs: the same 64 bits are two locks, of the two spaces.
func TestPairs(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	id := pairID(-1, 7)
	pair := open(t, dsn)
	h := pair.Claim(session.Claim{Locks: []session.Lock{{ID: id}}})
	if !try(t, open(t, dsn).hold(id.Number)) || !try(t, h) {
		t.Fatal("a pair and a bigint are in each other's way")
	}
	confirm(t, h)
	if got := query(t, server, "SELECT pg_try_advisory_lock(-1, 7), pg_try_advisory_lock(7, -1)"); got[0] != "f" || got[1] != "t" {
		t.Errorf("plain SQL is granted (-1, 7) and (7, -1): %v", got)
	}
	waiter := open(t, dsn)
	w := waiter.Claim(session.Claim{Locks: []session.Lock{{ID: id}}})
	if err := w.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	result := waitFor(t, server, w)
	unlock(t, h, true)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if delay := waiter.Evidence(id).Delay(time.Hour); delay != 0 {
		t.Errorf("after a clean end the waiter waits %v", delay)
	}
	confirm(t, w)
}

// TestUnlisten: who stands aside for a while knows nothing of what happens
// meanwhile, nor of a clean end before. But one who had started, and was not heard
// to end, may be alive.
func TestUnlisten(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	const number = 7
	id := lockkey.ID{Number: number}
	s := open(t, dsn)
	h := s.hold(number)
	run := func(wantHeard bool) {
		t.Helper()
		other := open(t, dsn).hold(number)
		if !try(t, other) {
			t.Fatal("the lock is taken")
		}
		confirm(t, other)
		unlock(t, other, false)
		if err := s.Ping(t.Context()); err != nil { // what was said before is heard before the answer
			t.Fatal(err)
		}
		if heard := s.Evidence(id).Heard(); heard != wantHeard || s.Listens(id) != wantHeard {
			t.Errorf("heard %v, listens %v, want %v", heard, s.Listens(id), wantHeard)
		}
	}
	for range 2 {
		if err := h.Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Evidence(id).Heard() {
			t.Error("something was heard before")
		}
		if err := h.Unlisten(t.Context()); err != nil {
			t.Fatal(err)
		}
		run(false)
	}

	if err := h.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(true)
	cfg := config(t, dsn)
	cfg.Lease = time.Minute
	gone := openWith(t, cfg)
	try(t, gone.hold(number))
	confirm(t, gone.hold(number))
	if err := h.Unlisten(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone.Close()
	if err := h.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if delay := s.Evidence(id).Delay(time.Second); delay < session.TakeoverDelay(time.Minute) {
		t.Errorf("after a holder with a lease of a minute that was not heard to end: %v", delay)
	}
	last := open(t, dsn).hold(number)
	try(t, last)
	confirm(t, last)
	s2 := open(t, dsn)
	result := waitFor(t, server, s2.hold(number)) // without whom nobody is told
	unlock(t, last, true)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if delay := s.Evidence(id).Delay(time.Second); delay != 0 {
		t.Errorf("after another's clean end: %v", delay)
	}
}

// TestEvidenceOfReaders: nobody can say that the last of several readers is
// dead, so a writer waits. Readers don't care for each other.
func TestEvidenceOfReaders(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	const number, lockDelay = 7, time.Hour
	id := lockkey.ID{Number: number}
	listen := func(h *session.Hold) {
		t.Helper()
		if err := h.Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	for _, late := range []bool{false, true} {
		reader, writer := open(t, dsn), open(t, dsn)
		r, w := reader.Claim(shared(number)), writer.hold(number)
		if !try(t, r) {
			t.Fatal("the lock is taken")
		}
		if !late {
			confirm(t, r)
		}
		listen(w)
		if late { // the writer hears of the start
			confirm(t, r)
		}
		result := waitFor(t, server, w)
		unlock(t, r, true)
		if err := <-result; err != nil {
			t.Fatal(err)
		}
		if delay := writer.Evidence(id).Delay(lockDelay); delay != lockDelay {
			t.Errorf("reader heard of %v: the writer after it waits %v", late, delay)
		}
		unlock(t, w, false)
	}

	writer, early, other := open(t, dsn), open(t, dsn), open(t, dsn)
	w, e, o := writer.hold(number), early.Claim(shared(number)), other.Claim(shared(number))
	if !try(t, w) {
		t.Fatal("the lock is taken")
	}
	confirm(t, w)
	listen(e)
	first := waitFor(t, server, e)
	listen(o)
	second := waitFor(t, server, o)
	unlock(t, w, true)
	if err := errors.Join(<-first, <-second); err != nil {
		t.Fatal(err)
	}
	confirm(t, o)
	if err := early.Ping(t.Context()); err != nil { // whatever was announced is heard by now
		t.Fatal(err)
	}
	if delay := early.Evidence(id).Delay(lockDelay); delay != 0 {
		t.Errorf("a reader after a clean writer waits %v, since another reader has started", delay)
	}
}

func TestSeveralLocks(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	blocker, taker, other := open(t, dsn), open(t, dsn), open(t, dsn)
	if !try(t, blocker.hold(2)) {
		t.Fatal("the lock is taken")
	}
	h := taker.Claim(exclusive(1, 2, 3))
	if try(t, h) || len(h.Held()) != 1 || h.Held()[0].Number != 1 {
		t.Fatalf("with 2 of 1, 2, 3 taken, Try comes to %v", h.Held())
	}
	if try(t, other.hold(1)) || !try(t, other.hold(3)) {
		t.Error("what comes before the busy lock is to be held, what comes after it is not")
	}
	unlock(t, other.hold(3), false)
	if err := h.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	result := waitFor(t, server, h)
	unlock(t, blocker.hold(2), false)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if h.Complete() || len(h.Held()) != 2 {
		t.Fatalf("after the wait it holds %v", h.Held())
	}
	if !try(t, h) || !h.Complete() {
		t.Fatalf("the rest is free, and it holds %v", h.Held())
	}
	confirm(t, h)
	unlock(t, h, true)
	if n := advisoryLocks(t, server); n != "0" {
		t.Errorf("%s locks stay", n)
	}

	// In a transaction it is all or nothing.
	if !try(t, blocker.hold(2)) {
		t.Fatal("the lock is taken")
	}
	h = inTransaction(t, dsn).Claim(exclusive(1, 2, 3))
	if try(t, h) || len(h.Held()) != 0 {
		t.Fatalf("in a transaction, with 2 taken, it holds %v", h.Held())
	}
	if n := advisoryLocks(t, server); n != "1" {
		t.Errorf("%s locks are held after a try in vain", n)
	}
	unlock(t, blocker.hold(2), false)
	if !try(t, h) {
		t.Error("all is free")
	}
	confirm(t, h)
}

// TestDeadlock: a program that takes the same locks in the other order.
func TestDeadlock(t *testing.T) {
	server := start(t, map[string]string{"deadlock_timeout": "100ms"})
	dsn := server.DSN("postgres")
	a, b := open(t, dsn).Claim(exclusive(1, 2)), open(t, dsn).Claim(exclusive(2, 1))
	if foreign := open(t, dsn).hold(2); try(t, foreign) {
		try(t, a) // takes 1
		unlock(t, foreign, false)
	}
	if foreign := open(t, dsn); true {
		// b takes 2 alone, since a has 1.
		if try(t, b) || len(b.Held()) != 1 || try(t, foreign.hold(1)) {
			t.Fatalf("b holds %v", b.Held())
		}
	}
	wait := func(h *session.Hold) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := h.Wait(context.Background(), time.Minute)
			ended <- err
		}()
		return ended
	}
	loser, loserEnd, winner, winnerEnd := a, wait(a), b, wait(b)
	var err error
	select {
	case err = <-loserEnd:
	case err = <-winnerEnd:
		loser, winner, winnerEnd = b, a, loserEnd
	}
	if err == nil || !session.Retryable(err) {
		t.Fatalf("Wait in a deadlock: %v", err)
	}
	unlock(t, loser, false)
	if err := <-winnerEnd; err != nil || !winner.Complete() {
		t.Fatalf("the other one: %v", err)
	}
	unlock(t, winner, false)
	if !try(t, loser) {
		t.Error("the loser's session is of no use any more")
	}
}

func TestSlots(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	const n, number = 3, 101
	claim := slots(number, n)
	var holders []*session.Hold
	for i := range n {
		h := open(t, dsn).Claim(claim)
		if !try(t, h) || h.Slot() != i+1 {
			t.Fatalf("holder %d is granted slot %d", i+1, h.Slot())
		}
		confirm(t, h)
		holders = append(holders, h)
	}
	late := open(t, dsn)
	h := late.Claim(claim)
	if try(t, h) || h.Complete() || h.Slot() != 0 {
		t.Fatalf("one too many: slot %d", h.Slot())
	}
	// Two in line whose time is up, at the gate and behind it, have nothing.
	if err := h.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := waitFor(t, server, h)
	second := open(t, dsn).Claim(claim)
	if granted, err := second.Wait(t.Context(), 100*time.Millisecond); granted || err != nil {
		t.Fatalf("Wait behind the first in line: %v, %v", granted, err)
	}
	unlock(t, holders[1], true)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if h.Slot() != 2 {
		t.Errorf("slot 2 is free, and %d is granted", h.Slot())
	}
	if delay := late.Evidence(h.Held()[0].ID).Delay(time.Hour); delay != 0 {
		t.Errorf("after the clean end of slot %d the next one waits %v", h.Slot(), delay)
	}
	confirm(t, h)
	if granted, err := second.Wait(t.Context(), 100*time.Millisecond); granted || err != nil {
		t.Fatalf("Wait at the gate: %v, %v", granted, err)
	}
	if n := advisoryLocks(t, server); n != "3" {
		t.Errorf("%s locks, with three slots taken and nobody in line", n)
	}

	// The end of a holder that says nothing is no clean one.
	if err := second.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	end := waitFor(t, server, second)
	query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(%d)", late.BackendPID()))
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	unlock(t, second, false)

	// A free slot is for those in line.
	line := open(t, dsn)
	if !try(t, line.hold(number-1)) {
		t.Fatal("somebody is in line")
	}
	newcomer := open(t, dsn).Claim(claim)
	if try(t, newcomer) {
		t.Error("a newcomer passed the line")
	}
	unlock(t, line.hold(number-1), false)
	if !try(t, newcomer) || newcomer.Slot() != 2 {
		t.Errorf("nobody is in line, slot 2 is free, and the newcomer has %d", newcomer.Slot())
	}

	// With fewer slots one shares those that both know.
	if try(t, open(t, dsn).Claim(slots(number, 2))) {
		t.Error("slots 1 and 2 are taken, also for whom there are no others")
	}
	if more := open(t, dsn).Claim(slots(number, 4)); !try(t, more) || more.Slot() != 4 {
		t.Errorf("of four slots the last is free, and %d is granted", more.Slot())
	}
	// Through a pooler there is no line, and still no more than there are slots.
	if try(t, inTransaction(t, dsn).Claim(claim)) {
		t.Error("one too many, in a transaction")
	}
	unlock(t, holders[2], true)
	h = inTransaction(t, dsn).Claim(claim)
	if !try(t, h) || h.Slot() != 3 {
		t.Errorf("slot 3 is free, and in a transaction %d is granted", h.Slot())
	}
	confirm(t, h)
}

// TestWaitsLastMoment: whether a wait that ends just when the lock becomes
// free has it or not, it says so.
func TestWaitsLastMoment(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	for name, claims := range map[string][2]session.Claim{
		"exclusive": {exclusive(7), exclusive(7)},
		"shared":    {exclusive(7), shared(7)},
		"slots":     {slots(7, 1), slots(7, 1)},
		"gate":      {exclusive(6), slots(7, 1)},
	} {
		holder, waiter := open(t, dsn), open(t, dsn)
		granted := 0
		for range 40 {
			h, w := holder.Claim(claims[0]), waiter.Claim(claims[1])
			if !try(t, h) {
				t.Fatalf("%s: the lock is taken", name)
			}
			released := make(chan error, 1)
			go func() {
				time.Sleep(rand.N(6 * time.Millisecond)) // spreads the release around the wait's end
				released <- h.Unlock(context.Background(), false)
			}()
			got, err := w.Wait(t.Context(), 3*time.Millisecond)
			if err := errors.Join(err, <-released); err != nil {
				t.Fatal(err)
			}
			want := "0"
			if got {
				granted, want = granted+1, "1"
			}
			if held := advisoryLocks(t, server); held != want {
				t.Fatalf("%s: Wait says %v, the server lists %s locks", name, got, held)
			}
			unlock(t, w, false)
		}
		t.Logf("%s: granted %d of 40", name, granted)
	}
}

// settings are those of both of a pooler's connections to the server.
func settings(t *testing.T, dsn string) (all []string) {
	t.Helper()
	for range 2 {
		conn, err := pgconn.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		// The open transaction keeps its connection from the next one.
		results, err := conn.Exec(t.Context(), "BEGIN; SELECT string_agg(name || '=' || setting, E'\n' ORDER BY name) FROM pg_settings").ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(results[1].Rows[0][0]))
	}
	return all
}

// TestTransaction: what the lock in a transaction promises, with and without
// a pooler in between.
func TestTransaction(t *testing.T) {
	server := start(t, nil)
	query(t, server, "CREATE TABLE indexed (n int)")
	for _, mode := range []string{"direct", "transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			dsn, number := server.DSN("postgres"), rand.Int64()
			var before []string
			if mode != "direct" {
				dsn = pooled(t, server, pgtest.Superuser, mode, 2)
				before = settings(t, dsn)
			}
			s := inTransaction(t, dsn)
			other := open(t, server.DSN("postgres"))
			if !try(t, s.hold(number)) || try(t, other.hold(number)) {
				t.Fatal("want the lock for the transaction alone")
			}
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.Keep()
			confirm(t, s.hold(number))

			// Between two heartbeats there is nothing that vacuum has to respect.
			eventually(t, "the real backend shows, by name, and is idle", func() bool {
				row := query(t, server, fmt.Sprintf(`SELECT a.application_name, a.backend_xid IS NULL AND a.backend_xmin IS NULL
					FROM pg_stat_activity a JOIN pg_locks l USING (pid)
					WHERE a.pid = %d AND a.state = 'idle in transaction' AND l.locktype = 'advisory' AND l.granted`, s.BackendPID()))
				if len(row) == 2 && (row[0] != "pglead:test" || row[1] != "t") {
					t.Fatalf("the backend is %v", row)
				}
				return len(row) == 2
			})
			query(t, server, "CREATE INDEX CONCURRENTLY ON indexed (n)")

			unlock(t, s.hold(number), true)
			if !try(t, other.hold(number)) {
				t.Error("the lock is still taken")
			}
			if try(t, s.hold(number)) {
				t.Error("the lock is taken, and the transaction has it too")
			}
			s.Close()
			if mode == "direct" {
				return
			}
			if after := settings(t, dsn); !slices.Equal(after, before) {
				t.Errorf("settings stay on the pooler's connections:\n%s\nbefore:\n%s", strings.Join(after, "\n\n"), strings.Join(before, "\n\n"))
			}
		})
	}
}

// TestLeaseInTransaction: heartbeats keep the transaction, and nothing else
// does.
func TestLeaseInTransaction(t *testing.T) {
	server := start(t, nil)
	for _, mode := range []string{"direct", "transaction", "session"} {
		for _, beating := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, heartbeats %v", mode, beating), func(t *testing.T) {
				t.Parallel()
				dsn := server.DSN("postgres")
				if mode != "direct" {
					dsn = pooled(t, server, pgtest.Superuser, mode, 2)
				}
				cfg := config(t, dsn)
				cfg.Transaction, cfg.Lease = true, 3*time.Second
				s, number := openWith(t, cfg), rand.Int64()
				if !try(t, s.hold(number)) {
					t.Fatal("the lock is taken")
				}
				other := open(t, server.DSN("postgres"))
				if !beating {
					await(t, s)
					eventually(t, "the server frees the lock", func() bool { return try(t, other.hold(number)) })
					return
				}
				s.Keep()
				confirm(t, s.hold(number))
				for end := time.Now().Add(cfg.Lease * 3 / 2); time.Now().Before(end); {
					select {
					case <-s.Renewed():
					case <-s.Lost():
						t.Fatal(s.Err())
					}
				}
				if try(t, other.hold(number)) {
					t.Error("the lock was not held for as long as there were heartbeats")
				}
				unlock(t, s.hold(number), true)
			})
		}
	}
}

// TestAbortedTransaction: an error ends the transaction and frees its lock,
// and the server goes on to answer. Here an administrator's cancel request
// meets a heartbeat.
func TestAbortedTransaction(t *testing.T) {
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"))
	cfg.Transaction, cfg.Lease = true, 3*time.Second
	s, other := openWith(t, cfg), open(t, server.DSN("postgres"))
	if !try(t, s.hold(7)) {
		t.Fatal("the lock is taken")
	}
	s.Keep()
	confirm(t, s.hold(7))
	backend, err := os.FindProcess(int(s.BackendPID()))
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); s.Err() == nil && time.Since(began) < 30*time.Second; {
		_ = backend.Signal(syscall.SIGINT) // pg_cancel_backend
		if rand.N(10_000) == 0 && try(t, other.hold(7)) {
			break
		}
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "the transaction that held the lock") {
		t.Errorf("the lock is free, and its holder thinks: %v", err)
	}
}

// TestTransactionRoleDefaults: what an administrator set for the role does no
// harm in a transaction either.
func TestTransactionRoleDefaults(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	query(t, server, `CREATE ROLE hasty LOGIN;
		ALTER ROLE hasty SET idle_in_transaction_session_timeout = '100ms';
		ALTER ROLE hasty SET statement_timeout = '2s';
		ALTER ROLE hasty SET lock_timeout = '1s';
		ALTER ROLE hasty SET default_transaction_isolation = serializable;
		ALTER ROLE hasty SET default_transaction_read_only = on;
		ALTER ROLE hasty SET synchronous_commit = off;
		ALTER ROLE hasty SET search_path = ''`)
	hasty := func(cfg session.Config) (tested, *session.Hold) {
		t.Helper()
		s := openWith(t, cfg)
		h := s.hold(rand.Int64())
		if !try(t, h) {
			t.Fatal("the lock is taken")
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Keep()
		confirm(t, h)
		return s, h
	}
	direct := strings.Replace(server.DSN("postgres"), pgtest.Superuser, "hasty", 1)
	for mode, dsn := range map[string]string{"direct": direct, "pooler": pooled(t, server, "hasty", "transaction", 2)} {
		cfg := config(t, dsn)
		cfg.Transaction, cfg.Lease = true, 3*time.Second
		s, h := hasty(cfg)
		for range 3 { // a heartbeat is not more often than every 0.6 s
			select {
			case <-s.Renewed():
			case <-s.Lost():
				t.Fatalf("%s: %v", mode, s.Err())
			}
		}
		isolation := query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND backend_xmin IS NOT NULL AND state = 'idle in transaction'", s.BackendPID()))
		if isolation[0] != "0" {
			t.Errorf("%s: the transaction keeps a snapshot", mode)
		}
		unlock(t, h, true)
		s.Close()
	}
	_, h := hasty(config(t, direct))
	unlock(t, h, true)
}

// TestTokensGrowAcrossModes: those who share a lock compare their tokens,
// whatever way each of them holds it.
func TestTokensGrowAcrossModes(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	last := int64(0)
	for name, grant := range map[string]func() session.Grant{
		"session":     func() session.Grant { return grantOf(t, open(t, dsn), exclusive(1)) },
		"transaction": func() session.Grant { return grantOf(t, inTransaction(t, dsn), exclusive(1)) },
		"pooler": func() session.Grant {
			return grantOf(t, inTransaction(t, pooled(t, server, pgtest.Superuser, "transaction", 2)), exclusive(1))
		},
		"shared":  func() session.Grant { return grantOf(t, open(t, dsn), shared(1)) },
		"several": func() session.Grant { return grantOf(t, open(t, dsn), exclusive(1, 2)) },
		"slots":   func() session.Grant { return grantOf(t, open(t, dsn), slots(1, 2)) },
	} {
		g := grant()
		if g.Token <= last {
			t.Errorf("%s: token %d after %d", name, g.Token, last)
		}
		last = g.Token
	}
}

func grantOf(t *testing.T, s tested, c session.Claim) session.Grant {
	t.Helper()
	h := s.Claim(c)
	if !try(t, h) {
		t.Fatal("the lock is taken")
	}
	grant := confirm(t, h)
	unlock(t, h, true)
	return grant
}

// TestMissingStandby: where commits wait for a standby that is gone, those of
// a holder without --quorum don't.
func TestMissingStandby(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"synchronous_standby_names": "gone", "synchronous_commit": "on"})
	dsn := server.DSN("postgres")
	hurry := func(t *testing.T, what string, f func()) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s hangs", what)
		}
	}
	for name, claim := range map[string]session.Claim{"exclusive": exclusive(7), "shared": shared(8), "several": exclusive(9, 10), "slots": slots(21, 1)} {
		holder, waiter := open(t, dsn), open(t, dsn)
		h := holder.Claim(claim)
		last := exclusive(claim.Locks[len(claim.Locks)-1].Number)
		if claim.Gate != nil {
			last = claim
		}
		w := waiter.Claim(last)
		hurry(t, name+": the grant", func() {
			try(t, h)
			confirm(t, h)
		})
		if err := w.Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
		granted := waitFor(t, server, w)
		hurry(t, name+": the handover", func() {
			unlock(t, h, true)
			if err := <-granted; err != nil {
				t.Error(err)
			}
			confirm(t, w)
			unlock(t, w, true)
		})
		want := time.Duration(0)
		if claim.Locks[0].Shared {
			want = time.Hour
		}
		if delay := waiter.Evidence(idOf(last)).Delay(time.Hour); delay != want {
			t.Errorf("%s: the waiter waits %v", name, delay)
		}
	}
	s := inTransaction(t, dsn)
	hurry(t, "in a transaction", func() {
		try(t, s.hold(7))
		confirm(t, s.hold(7))
		unlock(t, s.hold(7), true)
	})

	// Nor while one with a quorum waits for that standby.
	cfg := config(t, dsn)
	cfg.Quorum, cfg.Lease = true, time.Hour
	q := openWith(t, cfg)
	try(t, q.hold(30))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := q.hold(30).Confirm(ctx)
		ended <- err
	}()
	hurry(t, "the way to the token's commit", func() {
		for query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0] == "0" {
			time.Sleep(10 * time.Millisecond)
		}
	})
	hurry(t, "beside a token that waits for the standby", func() {
		s := open(t, dsn)
		try(t, s.hold(31))
		confirm(t, s.hold(31))
		unlock(t, s.hold(31), true)
	})
	stop()
	if err := <-ended; err == nil {
		t.Error("a token without its quorum is confirmed")
	}
}

func idOf(c session.Claim) lockkey.ID { return c.Locks[0].ID }

func TestTransactionRefusals(t *testing.T) {
	t.Parallel()
	primary := start(t, map[string]string{"wal_level": "replica"})
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	cfg := config(t, standby.DSN("postgres"))
	cfg.Transaction = true
	if _, err := session.Open(t.Context(), cfg); kindOf(err) != session.Standby {
		t.Errorf("Open on a standby: %v", err)
	}
	cfg = config(t, pooled(t, standby, pgtest.Superuser, "transaction", 2))
	cfg.Transaction = true
	if _, err := session.Open(t.Context(), cfg); kindOf(err) != session.Standby {
		t.Errorf("Open on a standby behind a pooler: %v", err)
	}

	// A pooler that gives the connection to others after every statement can
	// hold no transaction, and never will.
	cfg = config(t, pooled(t, primary, pgtest.Superuser, "statement", 2))
	cfg.Transaction = true
	s := openWith(t, cfg)
	if _, err := s.hold(7).Try(t.Context()); kindOf(err) != session.Unsafe {
		t.Errorf("Try through a pooler in statement mode: %v", err)
	}
}

// TestPoolIsBusy: a pooler that has no connection to give is no refusal of the
// lock, and who waits rides it out.
func TestPoolIsBusy(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := pooled(t, server, pgtest.Superuser, "transaction", 1)
	holder, late := inTransaction(t, dsn), inTransaction(t, dsn)
	if !try(t, holder.hold(7)) {
		t.Fatal("the lock is taken")
	}
	holder.Keep()
	if _, err := late.hold(8).Try(t.Context()); !session.Passing(err) || !strings.Contains(err.Error(), "query_wait_timeout") {
		t.Errorf("Try: %#v", err)
	}
}

// TestPoolOfOne: the token takes a second connection, and the message says so.
func TestPoolOfOne(t *testing.T) {
	t.Parallel()
	cfg := config(t, pooled(t, start(t, nil), pgtest.Superuser, "transaction", 1))
	cfg.Transaction, cfg.ConnectTimeout = true, time.Second
	s := openWith(t, cfg)
	if !try(t, s.hold(7)) {
		t.Fatal("the lock is taken")
	}
	s.Keep()
	_, err := s.hold(7).Confirm(t.Context())
	var e *session.Error
	if !errors.As(err, &e) || e.Kind != session.Unreachable || !strings.Contains(e.Hint, "second connection") {
		t.Errorf("Confirm: %#v", err)
	}
}

func TestQuorumInTransaction(t *testing.T) {
	primary := start(t, map[string]string{"synchronous_standby_names": "*", "wal_receiver_status_interval": "100ms"})
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	removed := false
	t.Cleanup(func() {
		if !removed {
			remove()
		}
	})
	cfg := config(t, pooled(t, primary, pgtest.Superuser, "transaction", 3))
	cfg.Transaction, cfg.Quorum, cfg.Lease = true, true, 3*time.Second
	s := openWith(t, cfg)
	if !try(t, s.hold(7)) {
		t.Fatal("the lock is taken")
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Keep()
	grant := confirm(t, s.hold(7))
	if row := query(t, primary, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %d", s.BackendPID())); row[0] != "1" {
		t.Errorf("backend %d holds %s locks", s.BackendPID(), row[0])
	}
	for end := time.Now().Add(cfg.Lease); time.Now().Before(end); {
		select {
		case <-s.Renewed():
		case <-s.Lost():
			t.Fatal(s.Err())
		}
	}
	if err := standby.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	await(t, s)
	if err := s.Err(); !strings.Contains(err.Error(), "synchronous standbys") {
		t.Errorf("lost: %v", err)
	}
	s.Close()
	plain := inTransaction(t, primary.DSN("postgres"))
	eventually(t, "the lock is free", func() bool { return try(t, plain.hold(7)) })
	if after := confirm(t, plain.hold(7)); after.Token <= grant.Token {
		t.Errorf("token %d after %d", after.Token, grant.Token)
	}
	remove()
	removed = true
}

// TestCrowded: who finds the line long stands in a side line, and only the first
// there in the line itself.
func TestCrowded(t *testing.T) {
	t.Parallel()
	const line, sides = 20, 16
	server := start(t, nil)
	dsn := server.DSN("postgres")
	holder := open(t, dsn)
	try(t, holder.hold(7))
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var waiting sync.WaitGroup
	for range line {
		waiting.Go(func() {
			conn, err := pgconn.Connect(ctx, dsn)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Exec(ctx, "SELECT pg_advisory_xact_lock(7)").ReadAll()
			_ = conn.Close(context.WithoutCancel(ctx))
		})
	}
	inLine := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d in line", n), func() bool {
			return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")[0] == strconv.Itoa(n)
		})
	}
	inLine(line)
	first := open(t, dsn)
	hold := first.hold(7)
	if granted, err := hold.Wait(t.Context(), time.Hour); granted || !errors.Is(err, session.ErrCrowded) {
		t.Fatalf("behind %d others: %v, %v", line, granted, err)
	}
	// Another lock's line is another line.
	if granted, err := first.hold(8).Wait(t.Context(), time.Hour); !granted || err != nil {
		t.Errorf("another lock: %v, %v", granted, err)
	}
	if err := hold.StandAside(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if granted, err := hold.Wait(t.Context(), time.Millisecond); granted || err != nil {
		t.Errorf("the first of a side line, in line: %v, %v", granted, err)
	}

	// Somebody is first in every side line there is.
	bar, err := pgconn.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer bar.Close(context.Background())
	for i := range sides {
		id := lockkey.SideLine(lockkey.ID{Number: 7}, i)
		if _, err := bar.Exec(t.Context(), "SELECT pg_try_advisory_lock("+id.String()+")").ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	second := open(t, dsn)
	follower := second.hold(7)
	if err := follower.StandAside(t.Context(), time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if granted, err := follower.Wait(t.Context(), time.Hour); granted || !errors.Is(err, session.ErrCrowded) {
		t.Errorf("behind the first of its side line: %v, %v", granted, err)
	}
	if err := follower.Unlisten(t.Context()); err != nil {
		t.Fatal(err)
	}
	followed := make(chan error, 1)
	go func() { followed <- follower.StandAside(t.Context(), time.Hour) }()
	inLine(line + 1)

	// The lock's grant, and not its end, is what lets it follow.
	if err := bar.Close(t.Context()); err != nil {
		t.Error(err)
	}
	unlock(t, holder.hold(7), false)
	waiting.Wait() // each has had its turn
	if granted, err := hold.Wait(t.Context(), time.Hour); !granted || err != nil {
		t.Fatalf("with nobody in line: %v, %v", granted, err)
	}
	if _, err := hold.Confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-followed; err != nil {
		t.Fatal(err)
	}
	// It isn't in line yet when the holder ends, and knows that it did.
	if err := hold.Unlock(t.Context(), true); err != nil {
		t.Error(err)
	}
	if granted, err := follower.Wait(t.Context(), time.Hour); !granted || err != nil {
		t.Errorf("the follower: %v, %v", granted, err)
	}
	if !second.Evidence(lockkey.ID{Number: 7}).Clean() {
		t.Error("the follower has not heard of the clean end")
	}
	if err := follower.Unlock(t.Context(), false); err != nil {
		t.Error(err)
	}
	if left := query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid <> 8")[0]; left != "0" {
		t.Errorf("%s locks are left", left)
	}
}
