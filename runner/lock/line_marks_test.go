package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
)

// inLineSQL is a condition for the locks by which sessions stand in a lock's line: tickets
// have 1 for sub, marks 2.
func inLineSQL(line lockkey.ID, sub int) string {
	return fmt.Sprintf("FROM pg_locks WHERE classid = %d AND objsubid = %d", advisory.TicketClass(line), sub)
}

// waitsBeside makes sure that a waiter, when it is granted the lock, waits for a command that may
// be alive.
func waitsBeside(t *testing.T, waiter *contender) {
	t.Helper()
	eventually(t, "it has the lock", func() bool { return delayed(waiter) || !waiter.waits() })
	if !delayed(waiter) {
		t.Errorf("it has started beside a command that may be alive: %v, %v", waiter.err, waiter.said())
	}
}

// holdBack keeps all sessions from committing a NOTIFY, until letGo: its own commit of a NOTIFY
// waits for a standby that is not there, and PostgreSQL commits one NOTIFY at a time.
func holdBack(t *testing.T, server *localpg.Server) (letGo func()) {
	t.Helper()
	conn := plain(t, server.DSN("postgres"), "SET synchronous_commit = 'on'")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = localpg.Ask(context.WithoutCancel(t.Context()), conn, "SELECT pg_notify('any', ''), pg_logical_emit_message(true, '', '')")
	}()
	eventually(t, "a NOTIFY waits", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0] == "1"
	})
	return func() {
		query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(%d)", conn.PID()))
		<-done
	}
}

// holdSecondListen is the DSN of a relay that holds back what follows the second LISTEN until goOn
// is called. listened is closed when the server has the LISTEN.
func holdSecondListen(t *testing.T, server *localpg.Server) (dsn string, listened <-chan struct{}, goOn func()) {
	t.Helper()
	listens, isNext, held, over := 0, false, make(chan struct{}), make(chan struct{})
	dsn = newSlowRelay(t, server, func(sql string) string {
		if isNext {
			isNext = false
			close(held)
			<-over
		}
		if strings.HasPrefix(sql, "LISTEN") {
			listens++
			isNext = listens == 2
		}
		return sql
	})
	goOn = sync.OnceFunc(func() { close(over) })
	t.Cleanup(goOn)
	return dsn, held, goOn
}

// staying is a holder's configuration with which its session stays open after the release, so
// that its role can be looked up, as after a brief run on a machine that is not busy.
func staying(cfg lock.Config) lock.Config { return lock.OfList(cfg) }

// releaseLate ends a holder, which names a waiter that has a mark. The announcement comes when
// sayNow is called.
func releaseLate(t *testing.T, server *localpg.Server, holder *contender) (sayNow func()) {
	t.Helper()
	h := holder.held(t)
	t.Cleanup(h.Session.Close)
	h.Prefer("anywhere") // otherwise a session that works on a list would name nobody
	letGo := holdBack(t, server)
	said := make(chan error)
	go func() { said <- h.Release(t.Context()) }()
	eventually(t, "the holder has seen the mark", func() bool {
		return query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE pid = %d AND NOT granted", h.Session.BackendPID()))[0] == "1"
	})
	return func() {
		letGo()
		if err := <-said; err != nil {
			t.Fatal(err)
		}
	}
}

// TestLooksAtNobody: a bid of a list listens while nobody has the lock, so its look shows no other
// session. It knows its own role all the same, and believes another session of that role.
func TestLooksAtNobody(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := staying(config(t, server.DSN("postgres"), exclusive(7)))
	bid := lock.NewBid(open(t, cfg), cfg, true) // another session may have had the lock
	if err := bid.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	another := acquire(t, cfg)
	t.Cleanup(another.Session.Close)
	if err := another.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !try(t, bid) {
		t.Fatal("the lock is free, and was refused")
	}
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	if _, err := bid.Settle(ctx); err != nil {
		t.Errorf("it waits out the lock-delay: %v", err)
	}
}

// TestLockGivenBack: a bid gives back what it was granted, and comes for it again. If it listens
// meanwhile, it knows of others who have had the lock. If it doesn't, their commands may be alive.
func TestLockGivenBack(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	another := config(t, server.DSN("postgres"), exclusive(7))
	cfg := staying(another)
	s := open(t, cfg)
	hold := func(end func(*lock.Held)) { end(acquire(t, another)) }
	clean := func(h *lock.Held) {
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
		h.Close()
	}
	lost := func(h *lock.Held) {
		query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(%d, 10000)", h.Session.BackendPID()))
	}
	for _, tt := range []struct {
		name    string
		listens bool
		then    func()
		starts  bool
	}{
		{"nobody had it", true, func() {}, true},
		{"another had it, and said so", true, func() { hold(clean) }, true},
		{"another lost it", true, func() { hold(lost) }, false},
		{"another lost it, and the bid heard nothing", false, func() { hold(lost) }, false},
	} {
		bid := lock.NewBid(s, cfg, false)
		take := func() {
			if !try(t, bid) {
				t.Fatalf("%s: the lock is free, and was refused", tt.name)
			}
		}
		take()
		var err error
		if tt.listens {
			err = bid.Listen(t.Context())
		}
		if err = errors.Join(err, bid.GiveBack(t.Context())); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		tt.then()
		take()
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		if !tt.starts {
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		}
		if _, err := bid.Settle(ctx); (err == nil) != tt.starts || err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", tt.name, err)
		}
		cancel()
		if err := errors.Join(bid.GiveBack(t.Context()), bid.Unlisten(t.Context())); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
	}
}

// TestNamedByOldMark: a holder that ends sees the mark of a waiter, and names that waiter, but the
// commit takes long. By then the waiter has given the mark back, since others came before it, and
// listens again. Before it is marked again, another holder starts, which finds no mark and so
// announces nothing, and whose command may be alive when its session is gone.
func TestNamedByOldMark(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"synchronous_standby_names": "nobody"})
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), time.Minute)
	cfg.LockDelay = 100 * time.Millisecond // after this delay it speaks for all earlier holders
	before := plain(t, server.DSN("postgres"), "SELECT pg_advisory_lock(7)")
	holder := contend(t, staying(cfg))
	inLine(t, server, id(7), 1)
	dsn, listensAgain, goOn := holdSecondListen(t, server)
	waiter := contend(t, leased(config(t, dsn, exclusive(7)), 3*time.Second)) // looks often
	inLine(t, server, id(7), 2)
	strangers := plain(t, server.DSN("postgres"), "SELECT 1")

	run(t, before, "SELECT pg_advisory_unlock(7)")
	sayNow := releaseLate(t, server, holder)

	first := query(t, server, "SELECT min(objid::bigint) "+inLineSQL(id(7), 1))[0]
	tickets := fmt.Sprintf("(%d::bigint << 32 | %s - n)) FROM generate_series(1, %d) AS n", int32(advisory.TicketClass(id(7))), first, crowd.MostListeners)
	run(t, strangers, "SELECT pg_advisory_lock("+tickets)
	eventually(t, "the waiter is dormant", func() bool { return query(t, server, "SELECT count(*) "+inLineSQL(id(7), 2))[0] == "0" })
	run(t, strangers, "SELECT pg_advisory_unlock("+tickets)
	select {
	case <-listensAgain:
	case <-time.After(longest):
		t.Fatal("the waiter does not listen again")
	}
	sayNow()
	tear(t, server, acquire(t, cfg))
	goOn()
	waitsBeside(t, waiter)
}

// TestStartBeforeMark: a holder finds no mark, and so starts without a word, before a waiter takes
// its mark. Its session is gone before the waiter looks, and its command may be alive.
func TestStartBeforeMark(t *testing.T) {
	const mark, look = "row_number()", "WITH l AS MATERIALIZED"
	for name, tornBefore := range map[string]string{"torn before the mark": mark, "torn between the mark and the look": look} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			cfg := config(t, server.DSN("postgres"), exclusive(7))
			h := acquire(t, cfg)
			next := contend(t, cfg)
			inLine(t, server, id(7), 1)

			held, goOn, over := make(chan string), make(chan struct{}), make(chan struct{})
			finish := sync.OnceFunc(func() { close(over) })
			t.Cleanup(finish)
			waiter := contend(t, config(t, newSlowRelay(t, server, func(sql string) string {
				for _, query := range []string{mark, look} {
					if !strings.Contains(sql, query) {
						continue
					}
					select {
					case held <- query:
						<-goOn
					case <-over:
					}
				}
				return sql
			}), exclusive(7)))
			for query := ""; query != look; goOn <- struct{}{} {
				select {
				case query = <-held:
				case <-time.After(longest):
					t.Fatalf("the waiter sends no query after %q", query)
				}
				if query == mark {
					release(t, h)
					h = next.held(t)
				}
				if query == tornBefore {
					tear(t, server, h)
				}
			}
			finish()
			waitsBeside(t, waiter)
		})
	}
}

// listens opens a session that works on a list, and makes a bid that listens for an item. bidAgain
// makes another bid of that session, and log has what these bids log.
func listens(t *testing.T, cfg lock.Config) (bid *lock.Bid, bidAgain func() *lock.Bid, log *contender) {
	t.Helper()
	log = &contender{}
	cfg.Log = slog.New(log)
	s := openOnly(t, cfg)
	bid = lock.NewBid(s, cfg, false)
	if err := bid.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	return bid, func() *lock.Bid { return lock.NewBid(s, cfg, true) }, log
}

// settles makes a bid take the free lock, and settle within some seconds. It fails the test if the
// bid does not hold the lock for a delay, and returns Settle's error.
func settles(t *testing.T, bid *lock.Bid, log *contender) error {
	t.Helper()
	if granted, err := bid.Try(t.Context()); err != nil || !granted {
		t.Fatal(granted, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := bid.Settle(ctx)
	if !delayed(log) {
		t.Errorf("it has started beside a command that may be alive: %v, %v", err, log.said())
	}
	return err
}

// TestListNamedByOldMark is TestNamedByOldMark for a session that works on a list, gives up
// listening for an item, and comes back to it.
func TestListNamedByOldMark(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"synchronous_standby_names": "nobody"})
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), time.Minute)
	cfg.LockDelay = 100 * time.Millisecond
	before := plain(t, server.DSN("postgres"), "SELECT pg_advisory_lock(7)")
	holder := contend(t, staying(cfg))
	inLine(t, server, id(7), 1)

	dsn, listensAgain, goOn := holdSecondListen(t, server)
	listing := leased(config(t, dsn, exclusive(7)), time.Minute)
	first, bidAgain, log := listens(t, staying(listing))
	// With another session in line, a look shows the list's own role, too.
	run(t, before, fmt.Sprintf("SELECT pg_advisory_unlock(7), pg_advisory_lock(%d::bigint << 32)", int32(advisory.TicketClass(id(7)))))
	sayNow := releaseLate(t, server, holder)
	if err := first.Unlisten(t.Context()); err != nil {
		t.Fatal(err)
	}
	bid := bidAgain()
	listening := make(chan error)
	go func() { listening <- bid.Listen(t.Context()) }()
	<-listensAgain
	sayNow()
	tear(t, server, acquire(t, cfg))
	goOn()
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	if err := settles(t, bid, log); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestMarkDenied: a stranger can keep a session that works on a list from its mark, so that holders
// announce nothing to it. Then what it hears is no evidence.
func TestMarkDenied(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	stranger := plain(t, as(t, server, "stranger"), fmt.Sprintf("SELECT pg_advisory_lock(%d, -1)", int32(advisory.TicketClass(id(7)))))
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), time.Minute)
	cfg.LockDelay = 100 * time.Millisecond
	h := acquire(t, staying(cfg)) // it announces its end even if nobody listens
	bid, _, log := listens(t, staying(cfg))
	run(t, stranger, "SELECT pg_advisory_unlock_all()") // otherwise its lock would look like a listener's mark
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Session.Close()
	tear(t, server, acquire(t, cfg))
	if err := settles(t, bid, log); err != nil {
		t.Error(err)
	}
}
