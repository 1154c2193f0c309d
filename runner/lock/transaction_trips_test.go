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

// newCounter has before called with a connection's number, from 1, while its login has
// not begun.
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

// TestTripsThroughPooler: a refusal is a login and the question of who has the lock,
// and never a second login; a grant takes one, and four questions.
func TestTripsThroughPooler(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	c := newCounter(t, pooled(t, server, localpg.Superuser, "transaction", 3), func(int) {})
	cfg := inTransaction(config(t, c.dsn, exclusive(7)))
	cfg.Wait, cfg.Explain = 0, true

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
	// The login, its checks with the trial, the transaction with the next one, the
	// verification, the end; and beside that a login and the token.
	if got, want := c.counted()[1:], []int{5, 2}; !slices.Equal(got, want) {
		t.Errorf("a grant: round trips %v, want %v", got, want)
	}
}

// TestTakenMeanwhile: a lock that was free at the login, and is not at the beginning
// of the transaction, is refused, and what was made ready for the command is undone.
func TestTakenMeanwhile(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	thief := plain(t, server.DSN("postgres"))
	c := newCounter(t, pooled(t, server, localpg.Superuser, "transaction", 3), func(connection int) {
		if connection == 2 { // it was free at the first, and will be begun for
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
	refused := contendPrepared(t, cfg, prepare)
	<-refused.done
	if _, ok := refused.err.(*lock.ConflictError); !ok || prepared != 1 || undone != 1 { //nolint:errorlint // as it is
		t.Errorf("%v; prepared %d times, undone %d times", refused.err, prepared, undone)
	}
	// No transaction stays open at the pooler, which could have its connection for others.
	if got := query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")[0]; got != "0" {
		t.Errorf("%s transactions are left", got)
	}

	// Free again, it is had with the same settings, and prepared for once.
	run(t, thief, "SELECT pg_advisory_unlock_all()")
	release(t, contendPrepared(t, cfg, prepare).held(t))
	if prepared != 2 || undone != 1 {
		t.Errorf("prepared %d times, undone %d times", prepared, undone)
	}
}

// TestSecondOfThoseWhoWait: they have the connection for the token before their turn
// comes, so that those behind them can't take the last one.
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

// TestRoomForSecond: where there is no room for the second connection, one who doesn't
// wait for the lock asks for it again, without the lock.
func TestRoomForSecond(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := as(t, server, "narrow")
	query(t, server, "ALTER ROLE narrow CONNECTION LIMIT 2")
	guest, other := plain(t, dsn), plain(t, server.DSN("postgres"))
	var free []string
	c := newCounter(t, dsn, func(connection int) {
		if connection == 3 { // the second one has been refused
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
