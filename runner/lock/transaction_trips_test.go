package lock_test

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// counter stands before a pooler and counts, for each connection, the requests that
// were answered.
type counter struct {
	dsn   string
	mu    sync.Mutex
	trips []int
}

// newCounter makes a counter that calls before with each connection's number, from 1, before its
// login begins.
func newCounter(t *testing.T, dsn string, before func(connection int)) *counter {
	t.Helper()
	at, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	socket := fmt.Sprintf(".s.PGSQL.%d", at.Port)
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	c := &counter{dsn: strings.Replace(dsn, "host="+at.Host, "host="+dir, 1)}
	var passing sync.WaitGroup
	passing.Go(func() {
		for n := 1; ; n++ {
			near, err := l.Accept()
			if err != nil {
				return
			}
			before(n)
			far, err := net.Dial("unix", filepath.Join(at.Host, socket))
			if err != nil {
				_ = near.Close()
				continue
			}
			c.mu.Lock()
			c.trips = append(c.trips, 0)
			c.mu.Unlock()
			asked := false
			passing.Go(func() { c.pass(far, near, func() { asked = true }) })
			passing.Go(func() {
				c.pass(near, far, func() {
					if asked {
						c.trips[n-1]++
					}
					asked = false
				})
			})
		}
	})
	t.Cleanup(func() { // the test's connections are closed
		_ = l.Close()
		passing.Wait()
	})
	return c
}

func (c *counter) pass(to, from net.Conn, note func()) {
	defer to.Close()
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		c.mu.Lock()
		note()
		c.mu.Unlock()
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// counted are the round trips of the connections up to now, logins included.
func (c *counter) counted() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.trips)
}

// TestTripsThroughPooler: a refused run logs in once and asks who has the lock, and never logs in a
// second time; a granted one does, and asks four questions.
func TestTripsThroughPooler(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	c := newCounter(t, pooled(t, server, localpg.Superuser, "transaction", 3), func(int) {})
	cfg := inTransaction(config(t, c.dsn, exclusive(7)))
	cfg.Wait = 0

	held := acquire(t, config(t, server.DSN("postgres"), exclusive(7)))
	refused := contend(t, cfg)
	<-refused.done
	if e, ok := refused.err.(*lock.ConflictError); !ok || len(e.Holders) != 1 || e.Holders[0].Backend != held.Session.BackendPID() { //nolint:errorlint // as it is
		t.Errorf("refused: %v", refused.err)
	}
	if got, want := c.counted(), []int{3}; !slices.Equal(got, want) { // the login, its checks with the trial, the holders
		t.Errorf("a refusal: round trips %v, want %v", got, want)
	}

	release(t, held)
	h := acquire(t, cfg)
	release(t, h)
	h.Close()
	// These are the login, its checks with the trial, the transaction with the next try, the
	// verification and the end; and on the second connection the login and the token.
	if got, want := c.counted()[1:], []int{5, 2}; !slices.Equal(got, want) {
		t.Errorf("a grant: round trips %v, want %v", got, want)
	}
}

// TestTakenMeanwhile: if a lock was free at the login, and is not free at the beginning of the
// transaction, the run is refused, and the guard is given up.
func TestTakenMeanwhile(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	thief := plain(t, server.DSN("postgres"))
	c := newCounter(t, pooled(t, server, localpg.Superuser, "transaction", 3), func(connection int) {
		if connection == 2 { // the lock was free on the first connection, and the transaction will begin
			_, _ = localpg.Ask(t.Context(), thief, "SELECT pg_advisory_lock(7)")
		}
	})
	var prepared, undone int
	cfg := inTransaction(config(t, c.dsn, exclusive(7)))
	cfg.Wait = 0
	prepare := func(*session.Session) (func(), error) {
		prepared++
		return func() { undone++ }, nil
	}
	refused := contendPreparing(t, cfg, prepare)
	<-refused.done
	if _, ok := refused.err.(*lock.ConflictError); !ok || prepared != 1 || undone != 1 { //nolint:errorlint // as it is
		t.Errorf("%v; prepared %d times, undone %d times", refused.err, prepared, undone)
	}
	// No transaction stays open at the pooler, which may need the connection for others.
	if got := query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")[0]; got != "0" {
		t.Errorf("%s transactions are left", got)
	}

	// When the lock is free again, a run with the same settings gets it, and prepares once.
	run(t, thief, "SELECT pg_advisory_unlock_all()")
	release(t, contendPreparing(t, cfg, prepare).held(t))
	if prepared != 2 || undone != 1 {
		t.Errorf("prepared %d times, undone %d times", prepared, undone)
	}
}

// TestSecondOfThoseWhoWait: waiters open the connection for the token before their turn comes, so
// that those behind them can't take the last one.
func TestSecondOfThoseWhoWait(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	c := newCounter(t, pooled(t, server, localpg.Superuser, "transaction", 3), func(int) {})
	held := acquire(t, config(t, server.DSN("postgres"), exclusive(7)))
	cfg := inTransaction(config(t, c.dsn, exclusive(7)))
	cfg.LockDelay = 0
	next := contend(t, cfg)
	eventually(t, "it has two connections", func() bool { return len(c.counted()) == 2 })
	if !next.waits() {
		t.Fatal(next.err)
	}
	release(t, held)
	release(t, next.held(t))
	if got := c.counted(); len(got) != 2 {
		t.Errorf("%d connections, want 2", len(got))
	}
}

// TestRoomForSecond: if there is no room for the second connection, a run that doesn't wait for the
// lock asks for a connection again, and does not have the lock meanwhile.
func TestRoomForSecond(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := as(t, server, "narrow")
	query(t, server, "ALTER ROLE narrow CONNECTION LIMIT 2")
	guest, other := plain(t, dsn), plain(t, server.DSN("postgres"))
	var free []string
	c := newCounter(t, dsn, func(connection int) {
		if connection == 3 { // the second connection has been refused
			free, _ = localpg.Ask(t.Context(), other, "SELECT pg_try_advisory_xact_lock(7)")
			_ = guest.Close(t.Context())
		}
	})
	cfg := inTransaction(config(t, c.dsn, exclusive(7)))
	cfg.Wait = 0
	h := acquire(t, cfg)
	release(t, h)
	h.Close()
	if got := len(c.counted()); got < 3 || !slices.Equal(free, []string{"t"}) {
		t.Errorf("%d connections; the lock was free meanwhile: %v", got, free)
	}
}
