package lock_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestUnconfirmedGivesBack: a run whose token no standby confirms frees the lock before it ends its
// session. It may try the next of several hosts, which may lead to the same server.
func TestUnconfirmedGivesBack(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"synchronous_standby_names": "gone"})
	var freed atomic.Bool
	cfg := withQuorum(config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.Contains(sql, "SELECT pg_catalog.pg_advisory_unlock(7)") {
			freed.Store(true)
		}
		return sql
	}), exclusive(7)))
	cfg.Wait = 0
	c := contend(t, cfg)
	<-c.done
	if !errors.Is(c.err, session.ErrUnconfirmed) || !freed.Load() {
		t.Errorf("freed: %t; %v", freed.Load(), c.err)
	}
}

// rememberingWithStandby starts a server with a ledger, and the standby that its commits wait for. It
// also returns the DSN of a role that is granted the ledger, and says whether the standby confirms.
func rememberingWithStandby(t *testing.T) (server, standby *localpg.Server, dsn string, confirms func() bool) {
	t.Helper()
	server, dsn = remembering(t, map[string]string{"wal_receiver_status_interval": "100ms"})
	standby, remove, err := server.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	query(t, server, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	query(t, server, "SELECT pg_reload_conf()")
	confirms = func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")[0] == "1"
	}
	eventually(t, "a standby confirms", confirms)
	return server, standby, dsn, confirms
}

// TestQuorumRoleDefaults: settings of the role's keep no run from the ledger, in any mode.
func TestQuorumRoleDefaults(t *testing.T) {
	t.Parallel()
	server, _, dsn, _ := rememberingWithStandby(t)
	query(t, server, "ALTER ROLE cron SET default_transaction_read_only = on")
	for n, mode := range []func(lock.Config) lock.Config{
		withQuorum, inTransaction,
		func(cfg lock.Config) lock.Config { return withQuorum(inTransaction(cfg)) },
	} {
		release(t, ended(acquire(t, mode(ledgered(config(t, dsn, exclusive(int64(n)))))), ledger.OK))
	}
	if got := query(t, server, "SELECT outcome FROM pglead.run"); !slices.Equal(got, []string{"ok", "ok", "ok"}) {
		t.Errorf("the ledger: %q", got)
	}
}

// TestUnconfirmedStartIsStopped: a session is lost before its command starts, since the standbys have
// fallen silent. The ledger, which has the start, learns on a new session that no command runs.
func TestUnconfirmedStartIsStopped(t *testing.T) {
	t.Parallel()
	server, standby, dsn, confirms := rememberingWithStandby(t)
	cfg := withQuorum(ledgered(config(t, dsn, exclusive(7))))
	cfg.Wait = 0
	c := contendPreparing(t, cfg, func(s *session.Session) (func(), error) {
		eventually(t, "the start is noted", func() bool {
			return query(t, server, "SELECT count(*) FROM pglead.lock WHERE started IS NOT NULL")[0] == "1"
		})
		if err := standby.Stop(syscall.SIGQUIT); err != nil {
			t.Error(err)
		}
		<-s.Done()
		if err := standby.StartLogged(); err != nil {
			t.Error(err)
		}
		eventually(t, "the standby is back", confirms)
		return nil, nil
	})
	<-c.done
	if !errors.Is(c.err, session.ErrUnconfirmed) {
		t.Errorf("Acquire: %v", c.err)
	}
	if got := rows(t, server); got != "nightly stopped f t f" {
		t.Errorf("the ledger: %s", got)
	}
}

// TestMissingStandby: commits wait for a standby that is gone, but not those of a holder without
// --quorum.
func TestMissingStandby(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"synchronous_standby_names": "gone", "synchronous_commit": "on"})
	dsn := server.DSN("postgres")
	for name, claim := range map[string]lock.Claim{"exclusive": exclusive(7), "several": exclusive(9, 10), "slots": slots(21, 1)} {
		cfg := config(t, dsn, claim)
		h := acquire(t, cfg)
		next := contend(t, cfg)
		line := claim.IDs[0]
		if claim.Gate != nil {
			line = *claim.Gate
		}
		inLine(t, server, line, 1)
		hurry(t, name+": the release", func() { release(t, h) })
		h = next.held(t)
		if delayed(next) {
			t.Errorf("%s: %v", name, next.said())
		}
		hurry(t, name+": the second release", func() { release(t, h) })
	}
	release(t, acquire(t, config(t, dsn, shared(8))))
	release(t, acquire(t, inTransaction(config(t, dsn, exclusive(7)))))

	// Nor do they while a run with a quorum waits for that standby.
	hanging := contend(t, leased(withQuorum(config(t, dsn, exclusive(30))), time.Hour))
	eventually(t, "the token's commit hangs", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0] != "0"
	})
	release(t, acquire(t, config(t, dsn, exclusive(31))))
	hanging.stop()
	<-hanging.done
	if hanging.err == nil {
		t.Error("a token without its quorum is confirmed")
	}
}
