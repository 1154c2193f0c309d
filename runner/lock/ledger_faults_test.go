package lock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestLedgerQuorumTidies: with a quorum a reader's end, which also tidies up the ledger, does not
// wait until the standbys have that, too. Nobody writes it to the disk here. The role is a
// superuser, who sees how far the standbys are.
func TestLedgerQuorumTidies(t *testing.T) {
	t.Parallel()
	primary, _ := remembering(t, nil)
	_, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	setNames(t, primary, "*")
	writer := query(t, primary, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")[0]
	signal(t, "STOP", writer)
	t.Cleanup(func() { signal(t, "CONT", writer) })
	cfg := leased(withQuorum(ledgered(config(t, primary.DSN("postgres"), shared(7)))), 4*longest)
	held := ended(acquire(t, cfg), ledger.OK)
	began := time.Now()
	release(t, held)
	if took := time.Since(began); took > longest {
		t.Errorf("the release took %v", took)
	}
}

// TestLedgerQuorum: a standby confirms a ledger's rows, and is promoted.
func TestLedgerQuorum(t *testing.T) {
	t.Parallel()
	primary, dsn := remembering(t, map[string]string{"wal_receiver_status_interval": "100ms"})
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	query(t, primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	query(t, primary, "SELECT pg_reload_conf()")
	cfg := withQuorum(ledgered(config(t, dsn, exclusive(7))))
	for range 2 {
		noted := contend(t, cfg)
		release(t, ended(noted.held(t), ledger.OK))
		if slices.Contains(noted.said(), "ledger") {
			t.Error("warned of an end that was noted")
		}
	}
	holdsOn := contend(t, leased(cfg, 4*lease))
	done := ended(holdsOn.held(t), ledger.OK)
	owner := plain(t, as(t, primary, "boss"), "BEGIN; LOCK TABLE pglead.lock")
	<-done.RecordEnd(t.Context())
	run(t, owner, "ROLLBACK")
	release(t, done)
	if slices.Contains(holdsOn.said(), "ledger") {
		t.Error("warned of an end that the release has noted")
	}
	late := contend(t, cfg)
	held := late.held(t)
	if slices.Contains(late.said(), "delayed") {
		t.Error("waited after a clean end")
	}
	if err := primary.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-held.Lost()
	if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, standby); got != "nightly  t t f" {
		t.Errorf("the standby has the row %s", got)
	}
	after := contend(t, ledgered(config(t, as(t, standby, "cron"), exclusive(7))))
	eventually(t, "the first on the new primary waits", func() bool { return slices.Contains(after.said(), "delayed") })
}

// TestLedgerPromotion: a standby that lacks the last rows is promoted. The clean ends in its ledger
// are of another timeline.
func TestLedgerPromotion(t *testing.T) {
	t.Parallel()
	primary, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	release(t, acquire(t, cfg))
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	if err := primary.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	there := ledgered(config(t, as(t, standby, "cron"), exclusive(7)))
	there.PrivateServer = false // so that its age counts
	after := contend(t, there)
	eventually(t, "the first on the new primary waits", func() bool { return slices.Contains(after.said(), "delayed") })
}

// TestLedgerRestored: a dump is restored into another cluster, whose tokens begin anew. The ends in
// it are worth nothing there; a run that is open in it may still be alive.
func TestLedgerRestored(t *testing.T) {
	t.Parallel()
	old, dsn := remembering(t, nil)
	if _, err := os.Stat(filepath.Join(old.Programs.Dir, "pg_dump")); err != nil {
		t.Skip("NOT TESTED: a ledger that is restored, since these server programs come without pg_dump")
	}
	release(t, ended(acquire(t, ledgered(config(t, dsn, exclusive(7)))), ledger.OK))
	open := acquire(t, ledgered(config(t, dsn, exclusive(8))))
	dir := filepath.Join(filepath.Dir(old.Data), "dump")
	if err := localpg.MakeDir(dir); err != nil {
		t.Fatal(err)
	}
	dump := filepath.Join(dir, "ledger.sql")
	if err := old.Run("pg_dump", "-d", old.DSN("postgres"), "-n", "pglead", "-f", dump); err != nil {
		t.Fatal(err)
	}
	there := testserver.StartApart(t, nil)
	query(t, there, "CREATE ROLE boss LOGIN; CREATE ROLE cron LOGIN; ALTER DATABASE postgres OWNER TO boss")
	if err := there.Run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", there.DSN("postgres"), "-f", dump); err != nil {
		t.Fatal(err)
	}
	cfg := ledgered(config(t, as(t, there, "cron"), exclusive(7)))
	young := cfg
	young.PrivateServer = false // so that the server's age counts
	wary := contend(t, young)
	eventually(t, "the first on a young server waits, whatever the dump says", func() bool { return slices.Contains(wary.said(), "delayed") })
	wary.stop()
	<-wary.done
	eventually(t, "its session is over", func() bool { return advisoryLocks(t, there) == "0" })
	release(t, ended(acquire(t, cfg), ledger.OK))
	if got := query(t, there, "SELECT count(DISTINCT system) FROM pglead.run WHERE number = 7"); got[0] != "2" {
		t.Errorf("runs of %s clusters", got)
	}
	cfg.Claim = exclusive(8)
	waiter := contend(t, cfg)
	eventually(t, "who comes after a run that was open in the dump waits", func() bool { return slices.Contains(waiter.said(), "delayed") })
	release(t, open)
}

// TestLedgerUnheard: a pglead that is not granted the ledger is torn from the lock.
func TestLedgerUnheard(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	release(t, acquire(t, cfg))
	stranger := acquire(t, ledgered(config(t, as(t, server, "stranger"), exclusive(7))))
	waiter := contend(t, cfg)
	inLine(t, server, id(7), 1)
	tear(t, server, stranger)
	eventually(t, "the waiter is delayed", func() bool { return slices.Contains(waiter.said(), "delayed") })
	waiter.stop()
	<-waiter.done
	if got := rows(t, server); got != "nightly stopped f t f" {
		t.Errorf("who gave up in its delay has left %s", got)
	}
}

// TestLedgerBlind: another program, which has no token that anybody could ask the ledger about, frees
// the lock. The waiter waits, though the ledger has the end of the last run that it knows.
func TestLedgerBlind(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	release(t, acquire(t, cfg))
	other := plain(t, dsn, "SELECT pg_advisory_lock(7)")
	waiter := contend(t, cfg)
	inLine(t, server, id(7), 1)
	run(t, other, "SELECT pg_advisory_unlock(7)")
	waitsBeside(t, waiter)
}

// TestLedgerBurst: a waiter that was named makes its many tries and the draw with the ledger's
// question in one request. Meanwhile its session is ended. The waiter goes on to wait in its old
// place.
func TestLedgerBurst(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	held := acquire(t, cfg)
	waiter := contend(t, cfg)
	inLine(t, server, id(7), 1)
	line := fmt.Sprintf("FROM pg_locks WHERE classid = %d AND objsubid = 1 AND objid <> 4294967295", advisory.TicketClass(id(7)))
	before := query(t, server, "SELECT pid "+line)
	// This is the holder's clean end, announced a little too early.
	run(t, plain(t, dsn), fmt.Sprintf("SELECT pg_notify('pglead.1.%s', 'clean %d %d 0 to=' || pid) %s", id(7), held.Token, lease.Milliseconds(), line))
	eventually(t, "it is ended while it tries", func() bool {
		return len(query(t, server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%generate_series(0, 49)%' AND pid = "+before[0])) > 0
	})
	eventually(t, "it stands in line again", func() bool {
		now := query(t, server, "SELECT pid "+line)
		return len(now) == 1 && now[0] != before[0]
	})
	inLine(t, server, id(7), 1)
	release(t, ended(held, ledger.OK))
	release(t, waiter.held(t))
}

// TestLedgerBurstOvertaken: a run without the ledger has the lock for a moment while a waiter's
// many tries, and its start in the ledger, are under way in one request. The ledger does not know
// of that run, and the waiter waits for its end. Nobody calls its first start lost.
func TestLedgerBurstOvertaken(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	const most = 40 // tries to come before the waiter
	for n := range most {
		held := acquire(t, cfg)
		waiter := contend(t, cfg)
		inLine(t, server, id(7), 1)
		token := held.Token + 1
		newcomer := plain(t, dsn)
		began := make(chan error, 1)
		go func() {
			_, err := localpg.Ask(t.Context(), newcomer, fmt.Sprintf(`DO $$ BEGIN
	LOOP EXIT WHEN pg_try_advisory_lock(7); END LOOP;
	PERFORM pg_notify('pglead.1.7', 'started %d %d 0');
END $$`, token, lease.Milliseconds()))
			if err == nil {
				_, err = localpg.Ask(t.Context(), newcomer, "SELECT pg_advisory_unlock(7)")
			}
			began <- err
		}()
		eventually(t, "the newcomer tries", func() bool {
			return query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d AND state = 'active'", newcomer.PID()))[0] == "1"
		})
		release(t, ended(held, ledger.OK))
		eventually(t, "the waiter is delayed, or done", func() bool { return !waiter.waits() || delayed(waiter) })
		if waiter.waits() {
			if err := <-began; err != nil {
				t.Fatal(err)
			}
			run(t, newcomer, fmt.Sprintf("SELECT pg_notify('pglead.1.7', 'clean %d %d 0')", token, lease.Milliseconds()))
			release(t, ended(waiter.held(t), ledger.OK))
			switch got := query(t, server, "SELECT outcome FROM pglead.run WHERE outcome <> 'ok'"); {
			case slices.Equal(got, []string{"stopped"}):
				return
			case len(got) > 0:
				t.Fatalf("the ledger has %v", got)
			}
			t.Logf("the newcomer was so early that there was no first start, %d of %d", n+1, most)
			continue
		}
		if got := query(t, server, fmt.Sprintf("SELECT query FROM pg_stat_activity WHERE pid = %d", newcomer.PID()))[0]; !strings.HasPrefix(got, "DO ") {
			t.Fatal("the newcomer had the lock before the waiter, which was not delayed")
		}
		release(t, ended(waiter.held(t), ledger.OK))
		if err := <-began; err != nil {
			t.Fatal(err)
		}
		t.Logf("the waiter was faster, %d of %d", n+1, most)
	}
	t.Error("nobody came between, or it did not count")
}

// TestLedgerUnstarted: the guard can't be started when the run is in the ledger already.
// The next run need not wait until a command would be dead.
func TestLedgerUnstarted(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	unready := errors.New("there is no guard")
	_, err := lock.NewCandidate(cfg).Acquire(t.Context(), func(*session.Session) (func(), error) {
		eventually(t, "the start is noted", func() bool {
			return query(t, server, "SELECT count(*) FROM pglead.lock WHERE started IS NOT NULL")[0] == "1"
		})
		return nil, unready
	})
	if !errors.Is(err, unready) {
		t.Errorf("Acquire: %v", err)
	}
	release(t, ended(acquire(t, cfg), ledger.OK))
}

// TestLedgerFails makes the ledger useless in every way in which it can be.
func TestLedgerFails(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	require := cfg
	require.Ledger.Mode = ledger.Require
	once := cfg
	once.Wait = 0
	release(t, acquire(t, cfg))
	t.Run("locked", func(t *testing.T) {
		patient := leased(cfg, 4*lease) // of a short lease a request that waits for 3 s leaves a slow machine little
		owner := plain(t, as(t, server, "boss"), "BEGIN; LOCK TABLE pglead.lock")
		if _, err := lock.NewCandidate(once).Acquire(t.Context(), nil); kindOf(err) != session.Unreachable || !strings.Contains(err.Error(), "55P03") {
			t.Errorf("while its table is locked: %v", err)
		}
		if _, err := lock.NewCandidate(leased(once, 3*time.Second)).Acquire(t.Context(), nil); !errors.Is(err, session.ErrSilent) ||
			err.Error() != "the server does not answer while the ledger is to note the start (has another session locked its tables?)" {
			t.Errorf("while its table is locked, with a short lease: %v", err)
		}
		eventually(t, "the server has ended that session, which else notes its start when the table is free", func() bool {
			return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0] == "0"
		})
		waiter := contend(t, patient)
		eventually(t, "one who waits tries again", func() bool {
			return strings.Count(strings.Join(waiter.said(), " "), "waiting") > 0
		})
		run(t, owner, "ROLLBACK")
		held := waiter.held(t)
		run(t, owner, "BEGIN; LOCK TABLE pglead.lock")
		release(t, held) // with a warning
		run(t, owner, "ROLLBACK")
		if got := rows(t, server); got != "nightly  t t f" {
			t.Errorf("a run whose end could not be noted: %s", got)
		}
		query(t, server, "UPDATE pglead.lock SET ended = now()")
	})
	t.Run("read only", func(t *testing.T) {
		query(t, server, "ALTER ROLE cron SET default_transaction_read_only = on")
		query(t, server, "ALTER ROLE cron SET default_transaction_isolation = 'serializable'")
		release(t, acquire(t, cfg))
	})
	held := acquire(t, cfg)
	reviewed := contend(t, cfg) // has found the ledger at its login
	inLine(t, server, id(7), 1)
	t.Run("revoked", func(t *testing.T) {
		query(t, server, "REVOKE USAGE ON SCHEMA pglead FROM cron")
		release(t, held)
		release(t, reviewed.held(t))
		release(t, acquire(t, cfg))
		if _, err := lock.NewCandidate(require).Acquire(context.WithoutCancel(t.Context()), nil); kindOf(err) != session.Denied {
			t.Errorf("what has to be remembered: %v", err)
		}
		query(t, server, "GRANT USAGE ON SCHEMA pglead TO cron")
	})
	t.Run("dropped", func(t *testing.T) {
		query(t, server, "UPDATE pglead.lock SET ended = now()")
		held := acquire(t, cfg)
		query(t, server, "DROP SCHEMA pglead CASCADE")
		release(t, held)
		release(t, acquire(t, cfg))
		if _, err := lock.NewCandidate(require).Acquire(t.Context(), nil); kindOf(err) != session.Denied {
			t.Errorf("what has to be remembered: %v", err)
		}
	})
	t.Run("another's schema", func(t *testing.T) {
		query(t, server, "CREATE SCHEMA pglead AUTHORIZATION other; GRANT USAGE ON SCHEMA pglead TO cron")
		untrusted := contend(t, cfg)
		release(t, untrusted.held(t))
		if !slices.Contains(untrusted.said(), "ledger") {
			t.Error("a schema that any role may have made is not warned of")
		}
		if _, err := lock.NewCandidate(require).Acquire(t.Context(), nil); kindOf(err) != session.Denied || !strings.Contains(err.Error(), "trusted") {
			t.Errorf("where a ledger is required: %v", err)
		}
		super := require
		super.Session.Database = config(t, server.DSN("postgres"), exclusive(7)).Session.Database
		if _, err := lock.NewCandidate(super).Acquire(t.Context(), nil); kindOf(err) != session.Denied || !strings.Contains(err.Error(), "trusted") {
			t.Errorf("where a ledger is required, to a superuser: %v", err)
		}
		query(t, server, "ALTER SCHEMA pglead OWNER TO boss")
		if _, err := lock.NewCandidate(once).Acquire(t.Context(), nil); kindOf(err) != session.Denied {
			t.Errorf("of another's schema: %v", err)
		}
		off := cfg
		off.Ledger.Mode = ledger.Off
		release(t, acquire(t, off))
	})
}
