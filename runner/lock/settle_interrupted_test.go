package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// interruptedAt starts a contender. Its context ends when a query with these words is on its way to
// the server, which gets the query when onward returns.
func interruptedAt(t *testing.T, server *localpg.Server, cfg lock.Config, words string, onward func()) *contender {
	t.Helper()
	started, stop := make(chan struct{}), func() {}
	c := contendThrough(t, server, cfg, words, func() {
		<-started
		stop()
		onward()
	})
	stop = c.stop
	close(started)
	return c
}

// contendThrough starts a contender. A query with these words reaches the server when onward
// returns.
func contendThrough(t *testing.T, server *localpg.Server, cfg lock.Config, words string, onward func()) *contender {
	t.Helper()
	relayed, err := session.ParseDSN(strings.Replace(newSlowRelay(t, server, func(sql string) string {
		if strings.Contains(sql, words) && !strings.Contains(sql, "pid IS NULL") { // and it is no warm-up
			onward()
		}
		return sql
	}), "user="+localpg.Superuser, "user="+cfg.Session.Database.User, 1), "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Session.Database = relayed
	return contend(t, cfg)
}

// TestInterruptedStart: the candidate's context ends when the request that starts the run is under
// way. The candidate still learns of the start, so its end is noted in the ledger, and those in
// line hear of it.
func TestInterruptedStart(t *testing.T) {
	t.Parallel()
	const draw, question = "pg_current_xact_id", "pglead.start_rest_1"
	for name, tt := range map[string]struct {
		claim  lock.Claim
		words  string
		behind bool // a holder, which ends
		ledger bool
		want   string
	}{
		"the draw":              {exclusive(7), draw, false, true, "nightly stopped f t f"},
		"the ledger's question": {exclusive(7, 8), question, false, true, "nightly stopped f t f nightly stopped f t f"},
		"the burst":             {exclusive(7), draw, true, true, "nightly stopped f t f"},
		"without a ledger":      {exclusive(7), draw, true, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, dsn := remembering(t, nil)
			cfg := config(t, dsn, tt.claim)
			if tt.ledger {
				cfg = ledgered(cfg)
			}
			holder := acquire(t, cfg) // the draw alone starts no first run of a key
			if !tt.behind {
				release(t, ended(holder, ledger.OK))
			}
			interrupted := interruptedAt(t, server, cfg, tt.words, func() {})
			var next *contender
			if tt.behind {
				inLine(t, server, id(7), 1)
				next = contend(t, cfg)
				inLine(t, server, id(7), 2)
				release(t, ended(holder, ledger.OK))
			}
			release(t, interrupted.held(t))
			if next != nil {
				release(t, ended(next.held(t), ledger.Stopped))
				if slices.Contains(next.said(), "delayed") {
					t.Errorf("the next in line waits: %v", next.said())
				}
			}
			if got := rows(t, server); got != tt.want {
				t.Errorf("the ledger: %s", got)
			}
		})
	}
}

// TestInterruptedStartSilent: if the server is silent, the end of the context ends a start long
// before the lease is over.
func TestInterruptedStartSilent(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	over := make(chan struct{})
	finish := sync.OnceFunc(func() { close(over) })
	c := interruptedAt(t, server, leased(ledgered(config(t, dsn, exclusive(7))), time.Hour), "pg_current_xact_id", func() { <-over })
	t.Cleanup(finish)
	select {
	case <-c.done:
	case <-time.After(longest):
		t.Fatal("it waits for the server")
	}
	if !errors.Is(c.err, context.Canceled) {
		t.Errorf("got %v", c.err)
	}
}

// TestGivenUpStart: a waiter's burst has started its run in the ledger, and meanwhile others have
// announced starts, so that the waiter begins again, or waits. The ledger then says of the first
// start that it was stopped, also if the context ends in that instant.
func TestGivenUpStart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		starts      int // that are announced, each by a session
		interrupted bool
	}{
		"for another start":               {1, false},
		"the context ends":                {1, true},
		"for a delay":                     {65, false}, // more than are remembered
		"the context ends before a delay": {65, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, dsn := remembering(t, nil)
			cfg := ledgered(config(t, dsn, exclusive(7)))
			holder := acquire(t, cfg)
			var others []*pgconn.PgConn
			for range tt.starts {
				others = append(others, plain(t, dsn))
			}
			announce := sync.OnceFunc(func() {
				for i, other := range others {
					run(t, other, fmt.Sprintf("SELECT pg_notify('pglead.1.7', 'started %d %d 0')", holder.Token+1+int64(i), lease.Milliseconds()))
				}
			})
			var c *contender
			if tt.interrupted {
				c = interruptedAt(t, server, cfg, "pg_current_xact_id", announce)
			} else {
				c = contendThrough(t, server, cfg, "pg_current_xact_id", announce)
			}
			inLine(t, server, id(7), 1)
			release(t, ended(holder, ledger.OK))
			eventually(t, "the start is stopped", func() bool {
				return query(t, server, "SELECT count(*) FROM pglead.run WHERE outcome = 'stopped'")[0] == "1"
			})
			c.stop()
			<-c.done
			if got := query(t, server, "SELECT count(*) FROM pglead.lock WHERE ended IS NULL"); got[0] != "0" {
				t.Errorf("%s runs are open", got[0])
			}
		})
	}
}

// TestUnguardedStart: the guard can't be started after a wait for the end of a run that
// was cut off. The ledger says that the run was stopped.
func TestUnguardedStart(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	tear(t, server, acquire(t, cfg))
	unready := errors.New("there is no guard")
	cfg.LockDelay = time.Second
	c := contendPreparing(t, cfg, func(*session.Session) (func(), error) {
		eventually(t, "the start is noted", func() bool {
			return query(t, server, "SELECT count(*) FROM pglead.run WHERE outcome = 'lost'")[0] == "1"
		})
		return nil, unready
	})
	<-c.done
	if !errors.Is(c.err, unready) {
		t.Errorf("Acquire: %v", c.err)
	}
	if got := rows(t, server); got != "nightly stopped f t f" {
		t.Errorf("the ledger: %s", got)
	}
}

// TestRestRejected: the server carries out the draw, which starts the run in the ledger, and
// rejects the rest of the message. The ledger learns that no command was started.
func TestRestRejected(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	cfg.LockDelay = 0
	release(t, ended(acquire(t, cfg), ledger.OK))
	other := plain(t, dsn, "SELECT pg_advisory_lock(7)")
	drawn := false
	relayed, err := session.ParseDSN(strings.Replace(newSlowRelay(t, server, func(sql string) string {
		draws := strings.Contains(sql, "pg_current_xact_id") && !strings.Contains(sql, "pid IS NULL") && !strings.Contains(sql, "pg_sleep")
		switch {
		case draws:
			drawn = true
		case drawn:
			drawn = false
			return "SELECT 1/0"
		}
		return sql
	}), "user="+localpg.Superuser, "user="+cfg.Session.Database.User, 1), "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Session.Database = relayed
	c := contend(t, cfg)
	inLine(t, server, id(7), 1)
	run(t, other, "SELECT pg_advisory_unlock(7)")
	<-c.done
	if c.err == nil || !strings.Contains(c.err.Error(), "division by zero") {
		t.Fatalf("want the server's error: %v", c.err)
	}
	if got := rows(t, server); got != "nightly stopped f t f" {
		t.Errorf("the ledger has %q", got)
	}
}

// TestInterruptedAtLockedLedger: a run is asked to end while the ledger's tables are locked, after
// it has announced its start. It gives its locks back with a word, so that the next one starts at
// once.
func TestInterruptedAtLockedLedger(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	query(t, server, "ALTER FUNCTION pglead.start_rest_1 SET lock_timeout = '1s'") // the answer comes while it is still waited for
	without := func(numbers ...int64) lock.Config { return leased(config(t, dsn, exclusive(numbers...)), longest) }
	h := acquire(t, without(7))
	interrupted := contend(t, ledgered(without(6, 7)))
	inLine(t, server, id(7), 1)
	next := contend(t, without(6))
	inLine(t, server, id(6), 1)
	plain(t, as(t, server, "boss"), "BEGIN; LOCK TABLE pglead.lock")
	release(t, h)
	eventually(t, "it waits for the ledger", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%start_rest_1%'")[0] == "1"
	})
	interrupted.stop()
	<-interrupted.done
	next.held(t)
	if delayed(next) {
		t.Errorf("it has waited for a run that never began: %v", next.said())
	}
}
