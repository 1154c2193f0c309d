package lock_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// canceled is a query as it fares if somebody cancels it.
const canceled = `DO $$BEGIN RAISE EXCEPTION USING ERRCODE = 'query_canceled', MESSAGE = 'canceled'; END$$`

// canceling is the DSN of a relay that has a session's query canceled, once: the next one that
// contains text, after armed is set. If late, the server has carried it out by then, but for its
// commit.
func canceling(t *testing.T, server *localpg.Server, text string, late bool, armed *atomic.Bool) (dsn string) {
	t.Helper()
	return newSlowRelay(t, server, func(sql string) string {
		switch {
		case !strings.Contains(sql, text) || !armed.CompareAndSwap(true, false):
			return sql
		case late:
			return sql + "; " + canceled
		}
		return canceled
	})
}

// TestCanceledInList: somebody cancels a query of a list's session. The session then holds none of
// the locks under which no command runs, since other commands may use it for hours, and it can take
// the next one. If the lock is free, nothing is said.
func TestCanceledInList(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	take := func(t *testing.T, cfg lock.Config, s *session.Session) *lock.Bid {
		t.Helper()
		b := lock.NewBid(s, cfg, false)
		if granted, err := b.Try(t.Context()); err != nil || !granted {
			t.Fatalf("granted %t, %v", granted, err)
		}
		return b
	}
	settle := func(t *testing.T, cfg lock.Config, s *session.Session) *lock.Held {
		t.Helper()
		h, err := take(t, cfg, s).Settle(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	type step func(t *testing.T, cfg lock.Config, s *session.Session) (canceled func(context.Context) error)
	releases := func(t *testing.T, cfg lock.Config, s *session.Session) func(context.Context) error {
		t.Helper()
		return settle(t, cfg, s).Release
	}
	givesBack := func(t *testing.T, cfg lock.Config, s *session.Session) func(context.Context) error {
		t.Helper()
		return take(t, cfg, s).GiveBack
	}
	tries := func(_ *testing.T, cfg lock.Config, s *session.Session) func(context.Context) error {
		return lock.NewBid(s, cfg, true).TryAlone
	}
	for i, of := range []struct {
		name        string
		query       string
		late        bool
		step        step
		transaction bool
		want        session.Kind
	}{
		{"release", "pg_advisory_unlock(", false, releases, false, 0},
		{"give back", "pg_advisory_unlock(", false, givesBack, false, 0},
		{"try", "pg_try_advisory_lock(", true, tries, false, session.Unreachable},
		{"commit", "COMMIT", false, releases, true, 0},
		{"rollback", "ROLLBACK", false, givesBack, true, 0},
	} {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			var armed atomic.Bool
			cfg, c := config(t, canceling(t, server, of.query, of.late, &armed), exclusive(int64(100+i))), &contender{}
			cfg = lock.OfList(cfg)
			cfg.Log, cfg.Session.Transaction = slog.New(c), of.transaction
			s := openOnly(t, cfg)
			f := of.step(t, cfg, s)
			armed.Store(true)
			if err := f(t.Context()); kindOf(err) != of.want || err == nil != (of.want == 0) {
				t.Errorf("%v", err)
			}
			if armed.Load() {
				t.Fatal("nothing was canceled")
			}
			held := query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %d", s.BackendPID()))
			if held[0] != "0" {
				t.Errorf("the session holds %s locks", held[0])
			}
			if said := c.said(); len(said) != 0 {
				t.Errorf("said %v", said)
			}
			release(t, settle(t, cfg, s))
		})
	}
}

// TestCanceledStart: somebody cancels a query by which a transaction's run is to start in the
// ledger. The ledger then has no such run, so that the next try does not wait for its end.
func TestCanceledStart(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := inTransaction(ledgered(config(t, dsn, exclusive(7))))
	release(t, ended(acquire(t, cfg), ledger.OK))
	for _, late := range []bool{false, true} {
		// The first query of the start that names no backend's own try.
		var done atomic.Bool
		relayed := newSlowRelay(t, server, func(sql string) string {
			first := strings.HasPrefix(sql, "BEGIN") && !strings.Contains(sql, "pg_try_") || strings.Contains(sql, "pglead.start")
			switch {
			case !first || !done.CompareAndSwap(false, true):
				return sql
			case late:
				return sql + "; " + canceled
			}
			return canceled
		})
		again := cfg
		again.Session.Database = config(t, strings.Replace(relayed, "user="+localpg.Superuser, "user=cron", 1), cfg.Claim).Session.Database
		c := contend(t, again)
		release(t, ended(c.held(t), ledger.OK))
		if said := c.said(); !done.Load() || slices.Contains(said, "delayed") || slices.Contains(said, "ledger") {
			t.Errorf("late %t: canceled %t; said %v", late, done.Load(), said)
		}
		c.got.Close()
	}
}

// TestCanceledEnd: somebody cancels the query that notes the end of a run in the ledger. On every
// way to hold a lock the end is noted all the same, and nothing is said. If each such query is
// canceled, the lock is free, and there is one warning.
func TestCanceledEnd(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	_, remove, err := server.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	setNames(t, server, "*")
	const always = 1000
	for i, of := range []struct {
		name     string
		change   func(*lock.Config)
		canceled int32
		warnings int
		late     bool // when the server has sent the row
	}{
		{"session", func(*lock.Config) {}, 1, 0, false},
		{"several", func(cfg *lock.Config) { cfg.Claim = exclusive(7, 8) }, 1, 0, false},
		{"twice", func(*lock.Config) {}, 2, 0, false},
		{"list", func(cfg *lock.Config) { *cfg = staying(*cfg) }, 1, 0, false},
		{"transaction", func(cfg *lock.Config) { cfg.Session.Transaction = true }, 1, 0, false},
		{"quorum", func(cfg *lock.Config) { cfg.Session.Quorum = true }, 1, 0, false},
		{"session, late", func(*lock.Config) {}, 1, 0, true},
		{"list, late", func(cfg *lock.Config) { *cfg = staying(*cfg) }, 1, 0, true},
		{"transaction, late", func(cfg *lock.Config) { cfg.Session.Transaction = true }, 1, 0, true},
		{"session, always", func(*lock.Config) {}, always, 1, false},
		{"transaction, always", func(cfg *lock.Config) { cfg.Session.Transaction = true }, always, 1, false},
		{"quorum, always", func(cfg *lock.Config) { cfg.Session.Quorum = true }, always, 1, false},
	} {
		var left atomic.Int32
		relayed := newSlowRelay(t, server, func(sql string) string {
			switch {
			case !strings.Contains(sql, "pglead.finish_1") || left.Add(-1) < 0:
				return sql
			case of.late:
				return sql + "; " + canceled
			}
			return canceled
		})
		cfg := ledgered(config(t, dsn, exclusive(int64(100+i))))
		cfg.Session.Database = config(t, strings.Replace(relayed, "user="+localpg.Superuser, "user=cron", 1), cfg.Claim).Session.Database
		of.change(&cfg)
		c := contend(t, cfg)
		held := ended(c.held(t), ledger.OK)
		left.Store(of.canceled)
		release(t, held)
		if left.Load() >= of.canceled {
			t.Fatalf("%s: nothing was canceled", of.name)
		}
		want := "0"
		if of.warnings > 0 {
			want = "1"
		}
		if open := query(t, server, fmt.Sprintf("SELECT count(*) FROM pglead.lock WHERE ended IS NULL AND token = %d", held.Token)); open[0] != want {
			t.Errorf("%s: %s open runs", of.name, open[0])
		}
		said := c.said()
		if n := len(slices.DeleteFunc(said, func(event string) bool { return event != "ledger" })); n != of.warnings {
			t.Errorf("%s: %d warnings, %v", of.name, n, c.texts)
		}
		c.got.Session.Close()
		eventually(t, "its session is over", func() bool { return advisoryLocks(t, server) == "0" })
	}
}
