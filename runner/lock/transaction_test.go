package lock_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// settings returns the settings of both of a pooler's connections to the server.
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
	t.Parallel()
	server := start(t, nil)
	query(t, server, "CREATE TABLE indexed (n int)")
	for _, mode := range []string{"direct", "transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			dsn, number := server.DSN("postgres"), rand.Int64()
			var before []string
			if mode != "direct" {
				dsn = pooled(t, server, localpg.Superuser, mode, 2)
				before = settings(t, dsn)
			}
			cfg := inTransaction(config(t, dsn, exclusive(number)))
			other := bid(t, config(t, server.DSN("postgres"), exclusive(number)))
			h := acquire(t, cfg)
			if try(t, other) {
				t.Fatal("want the lock for the transaction alone")
			}

			// Between two heartbeats nothing holds back vacuum.
			eventually(t, "the real backend shows, by name, and is idle", func() bool {
				row := query(t, server, fmt.Sprintf(`SELECT a.application_name, a.backend_xid IS NULL AND a.backend_xmin IS NULL
					FROM pg_stat_activity a JOIN pg_locks l USING (pid)
					WHERE a.pid = %d AND a.state = 'idle in transaction' AND l.locktype = 'advisory' AND l.granted`, h.Session.BackendPID()))
				if len(row) == 2 && (row[0] != "pglead:test@here" || row[1] != "t") {
					t.Fatalf("the backend is %v", row)
				}
				return len(row) == 2
			})
			query(t, server, "CREATE INDEX CONCURRENTLY ON indexed (n)")

			release(t, h)
			if !try(t, other) {
				t.Error("the lock is still taken")
			}
			h.Close()
			again := cfg
			again.Wait = 0
			if c := contend(t, again); func() bool { <-c.done; return c.err == nil }() {
				t.Error("the lock is taken, and the transaction has it too")
			}
			if mode == "direct" {
				return
			}
			if after := settings(t, dsn); !slices.Equal(after, before) {
				t.Errorf("settings stay on the pooler's connections:\n%s\nbefore:\n%s", strings.Join(after, "\n\n"), strings.Join(before, "\n\n"))
			}
		})
	}
}

// TestFullLockTable: a holder keeps its lock while the server has no memory for the lock by which
// its heartbeat looks for requests to step down, and hears a request when it has.
func TestFullLockTable(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"max_locks_per_transaction": "10", "max_connections": "20"})
	for name, dsn := range map[string]string{"direct": server.DSN("postgres"), "pooler": pooled(t, server, localpg.Superuser, "transaction", 2)} {
		cfg := leased(inTransaction(config(t, dsn, exclusive(rand.Int64()))), 3*time.Second)
		h := acquire(t, cfg)
		stranger := plain(t, server.DSN("postgres"))
		full := func() bool {
			_, err := localpg.Ask(t.Context(), stranger, "SELECT pg_advisory_lock(n) FROM generate_series(1, 100000) AS n")
			return session.HasCode(err, session.OutOfMemory)
		}
		if !full() {
			t.Fatal("the lock table has room for everything")
		}
		keeps(t, h.Session, 3*time.Second)
		run(t, stranger, "SELECT pg_advisory_unlock_all()")
		eventually(t, "the transaction says what it holds, and has no number", func() bool {
			shows := fmt.Sprintf("SELECT backend_xid IS NULL AND query LIKE '/*pglead %%' FROM pg_stat_activity WHERE pid = %d", h.Session.BackendPID())
			return slices.Equal(query(t, server, shows), []string{"t"})
		})
		request, err := lock.AskToStepDown(t.Context(), config(t, server.DSN("postgres"), lock.Claim{}).Session, cfg.Claim.IDs, "somebody", "")
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-h.StepDowns():
		case <-h.Lost():
			t.Errorf("%s: %v", name, h.Err())
		case <-time.After(longest):
			t.Errorf("%s: the request is not heard", name)
		}
		request.Close()
		release(t, h)
		h.Close()
	}
}

// TestPolling: a waiter with a transaction gets the lock soon after it is free, and starts after
// the delay, since it hears nothing.
func TestPolling(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := inTransaction(config(t, server.DSN("postgres"), exclusive(7)))
	cfg.LockDelay = 2 * time.Second
	h := acquire(t, cfg)
	next := contend(t, cfg)
	eventually(t, "it waits", func() bool { return len(next.said()) > 0 })
	stays(t, next, 2*time.Second) // twice the longest time between two tries
	released := time.Now()
	release(t, h)
	next.held(t)
	if took := next.ended.Sub(released); took < cfg.LockDelay || !delayed(next) {
		t.Errorf("it started after %v, and said %v", took, next.said())
	}
}

// keeps makes sure that a session is not lost for a while, in which it is renewed.
func keeps(t *testing.T, s *session.Session, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		select {
		case <-s.Renewed():
		case <-s.Done():
			t.Fatal(s.Err())
		}
	}
}

// await waits for a loss.
func await(t *testing.T, s *session.Session) {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(longest):
		t.Fatal("the loss went unnoticed")
	}
}

// TestLeaseInTransaction: only heartbeats keep the transaction open.
func TestLeaseInTransaction(t *testing.T) {
	server := start(t, nil)
	for _, mode := range []string{"direct", "transaction", "session"} {
		for _, beating := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, heartbeats %v", mode, beating), func(t *testing.T) {
				t.Parallel()
				dsn, number := server.DSN("postgres"), rand.Int64()
				if mode != "direct" {
					dsn = pooled(t, server, localpg.Superuser, mode, 2)
				}
				cfg := leased(inTransaction(config(t, dsn, exclusive(number))), 3*time.Second)
				other := bid(t, config(t, server.DSN("postgres"), exclusive(number)))
				if !beating {
					s, err := session.Open(t.Context(), cfg.Session)
					if err != nil {
						t.Fatal(err)
					}
					defer s.Close()
					if !try(t, lock.NewBid(s, cfg, false)) {
						t.Fatal("the lock is taken")
					}
					await(t, s)
					eventually(t, "the server frees the lock", func() bool { return try(t, other) })
					return
				}
				h := acquire(t, cfg)
				keeps(t, h.Session, cfg.Session.Lease*3/2)
				if try(t, other) {
					t.Error("the lock was not held for as long as there were heartbeats")
				}
				release(t, h)
			})
		}
	}
}

// TestAbortedTransaction: an error ends the transaction and frees its lock, though the server goes
// on answering. Here an administrator cancels a heartbeat's query.
func TestAbortedTransaction(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	h, other := acquire(t, leased(inTransaction(cfg), 3*time.Second)), bid(t, cfg)
	s := h.Session
	backend, err := os.FindProcess(int(s.BackendPID()))
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); s.Err() == nil && time.Since(began) < longest; {
		_ = backend.Signal(syscall.SIGINT) // pg_cancel_backend
		if rand.N(10_000) == 0 && try(t, other) {
			break
		}
	}
	select {
	case <-s.Done(): // whose reader may need a moment for the server's answer
	case <-time.After(leasetime.HolderShare(3 * time.Second)):
	}
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "the transaction that held the lock") {
		t.Errorf("the lock is free, and its holder thinks: %v", err)
	}
}

// TestTransactionRoleDefaults: settings that an administrator has made for the role do no harm in a
// transaction either.
func TestTransactionRoleDefaults(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	direct := as(t, server, "hasty")
	query(t, server, `ALTER ROLE hasty SET idle_in_transaction_session_timeout = '100ms';
		ALTER ROLE hasty SET statement_timeout = '2s';
		ALTER ROLE hasty SET lock_timeout = '1s';
		ALTER ROLE hasty SET default_transaction_isolation = serializable;
		ALTER ROLE hasty SET default_transaction_read_only = on;
		ALTER ROLE hasty SET default_transaction_deferrable = on;
		ALTER ROLE hasty SET synchronous_commit = off;
		ALTER ROLE hasty SET search_path = ''`)
	plain(t, server.DSN("postgres"), "CREATE TABLE any_table ()", "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO any_table DEFAULT VALUES")
	for mode, dsn := range map[string]string{"direct": direct, "pooler": pooled(t, server, "hasty", "transaction", 2)} {
		h := acquire(t, leased(inTransaction(config(t, dsn, exclusive(rand.Int64()))), 3*time.Second))
		keeps(t, h.Session, 2*time.Second)
		snapshots := query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND backend_xmin IS NOT NULL AND state = 'idle in transaction'", h.Session.BackendPID()))
		if snapshots[0] != "0" {
			t.Errorf("%s: the transaction keeps a snapshot", mode)
		}
		release(t, h)
		h.Close()
	}
	release(t, acquire(t, config(t, direct, exclusive(7))))
}

// TestStatementPooler: with a pooler that gives the connection to others after every statement no transaction
// can stay open, and that doesn't change by itself. If a pooler has no free connection, the lock is
// not refused, and a waiter goes on to wait. The token takes a second connection.
func TestStatementPooler(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	statement := bid(t, inTransaction(config(t, pooled(t, server, localpg.Superuser, "statement", 2), exclusive(6))))
	if _, err := statement.Try(t.Context()); kindOf(err) != session.Unsafe {
		t.Errorf("Try through a pooler in statement mode: %v", err)
	}

	dsn := pooled(t, server, localpg.Superuser, "transaction", 1)
	cfg := inTransaction(config(t, dsn, exclusive(7)))
	cfg.Session.ConnectTimeout = 4 * time.Second
	late := cfg
	late.Claim = exclusive(8)
	alone, other := bid(t, cfg), bid(t, late)
	application := plain(t, dsn, "BEGIN")
	if _, err := other.Try(t.Context()); !session.Passing(err) || !strings.Contains(err.Error(), "query_wait_timeout") {
		t.Errorf("Try: %#v", err)
	}
	run(t, application, "ROLLBACK")
	_, err := alone.Try(t.Context())
	e, ok := err.(*session.Error) //nolint:errorlint // as it is
	if !ok || !session.Passing(err) || !strings.Contains(e.Hint, "second connection") {
		t.Errorf("Try with one connection: %#v", err)
	}
	run(t, application, "BEGIN") // the connection is free again
}

// TestYoungServerBehindPooler: a session that has outlived its server goes by the age of the server
// that grants it the lock.
func TestYoungServerBehindPooler(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := inTransaction(config(t, pooled(t, server, localpg.Superuser, "transaction", 2), exclusive(7)))
	eventually(t, "the server is a second old", func() bool {
		return query(t, server, "SELECT clock_timestamp() - pg_postmaster_start_time() > '1s'")[0] == "t"
	})
	s := open(t, cfg)
	before := s.ServerAge()
	for range 2 {
		if b := lock.NewBid(s, cfg, false); !try(t, b) {
			t.Fatal("the lock is free and not granted")
		} else {
			giveBack(t, b)
		}
	}
	if after := s.ServerAge(); after <= before {
		t.Errorf("the server is %v old, and %v later", before, after)
	}

	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	b := lock.NewBid(s, cfg, false)
	if !try(t, b) {
		t.Fatal("the lock is free and not granted")
	}
	if after := s.ServerAge(); after >= before {
		t.Errorf("a server that has just come up is %v old, and the one before was %v", after, before)
	}
}

// TestTransactionCallsNobody: there is no line for the lock of a transaction, so a holder that found
// the server full before has nobody to call.
func TestTransactionCallsNobody(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := as(t, server, "guest")
	query(t, server, "ALTER ROLE guest CONNECTION LIMIT 2")
	full := []*pgconn.PgConn{plain(t, dsn), plain(t, dsn)}
	c := contend(t, inTransaction(config(t, dsn, exclusive(1))))
	eventually(t, "it finds the server full", func() bool { return len(c.said()) > 0 })
	for _, conn := range full {
		_ = conn.Close(t.Context())
	}
	h := c.held(t)
	release(t, h)
	if locks := advisoryLocks(t, server); locks != "0" {
		t.Errorf("after the release there are %s locks", locks)
	}
	if said := c.said(); slices.ContainsFunc(said, func(event string) bool { return event != "waiting" }) {
		t.Errorf("it said %v", said)
	}
}

// TestNoSecondConnection: a pooler has no connection for the second session. The candidate gives the
// lock back, and with it its own connection, and gets the lock when the pooler has two.
func TestNoSecondConnection(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	for name, wait := range map[string]time.Duration{"tries once": 0, "waits": lock.Forever} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, server.DSN("postgres"), exclusive(int64(len(name))))
			cfg.Wait, cfg.Session.Transaction = wait, true
			room := make(chan struct{})
			free := sync.OnceFunc(func() { close(room) })
			t.Cleanup(free)
			c := contendThrough(t, server, cfg, "pg_current_xact_id", func() { <-room })
			is := func(want string) func() bool {
				return func() bool {
					return query(t, server, fmt.Sprintf("SELECT count(*) > 0 FROM pg_locks WHERE objid = %d AND locktype = 'advisory'", len(name)))[0] == want
				}
			}
			eventually(t, "it has the lock", is("t"))
			eventually(t, "it has given the lock back", is("f"))
			if !c.waits() {
				t.Error(c.err)
			}
			free()
			c.held(t)
		})
	}
}
