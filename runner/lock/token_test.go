package lock_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

func TestLockExcludesAndTokensGrow(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	const number = -8996774569131282592 // negative: both halves have their top bit set or not
	cfg := config(t, server.DSN("postgres"), exclusive(number))
	other := bid(t, cfg)
	first := acquire(t, cfg)
	if try(t, other) {
		t.Fatal("the lock is granted twice")
	}
	if first.Token>>48 != 1 || first.SystemID != query(t, server, "SELECT system_identifier FROM pg_control_system()")[0] {
		t.Errorf("grant %+v is not of timeline 1 of this cluster", first)
	}
	// Every role sees the token in the session's name while the session holds the lock.
	name := func() string {
		return query(t, server, "SELECT application_name FROM pg_stat_activity WHERE pid = "+strconv.Itoa(int(first.Session.BackendPID())))[0]
	}
	if want := "pglead:#" + strconv.FormatInt(first.Token, 10) + " test@here"; name() != want {
		t.Errorf("the session's name is %q, want %q", name(), want)
	}
	release(t, first)
	if !try(t, other) {
		t.Fatal("the lock is still held")
	}
	if first.Release(t.Context()) == nil {
		t.Error("a lock was released that was not held")
	}
	giveBack(t, other)
	if second := acquire(t, cfg); second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
}

// TestTokenSurvivesCrash: without a commit that waits for the disk, a role whose commits don't do
// so would get the same transaction number again after a crash.
func TestTokenSurvivesCrash(t *testing.T) {
	t.Parallel()
	server := start(t, map[string]string{"wal_writer_delay": "10s"})
	dsn := as(t, server, "hasty")
	query(t, server, "ALTER ROLE hasty SET synchronous_commit = off")
	last := int64(0)
	cfg := config(t, dsn, exclusive(1))
	for _, cfg := range []lock.Config{cfg, cfg, inTransaction(cfg), inTransaction(cfg)} {
		h := acquire(t, cfg)
		if err := server.Stop(syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		if h.Token <= last {
			t.Errorf("token %d after %d", h.Token, last)
		}
		last = h.Token
		if err := server.StartLogged(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRoleDefaults: settings that an administrator has made for the role disturb neither a wait nor
// a grant.
func TestRoleDefaults(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := as(t, server, "hasty")
	query(t, server, `REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC;
		ALTER ROLE hasty SET idle_session_timeout = '100ms';
		ALTER ROLE hasty SET idle_in_transaction_session_timeout = '100ms';
		ALTER ROLE hasty SET statement_timeout = '50ms';
		ALTER ROLE hasty SET lock_timeout = '1ms';
		ALTER ROLE hasty SET default_transaction_isolation = serializable;
		ALTER ROLE hasty SET default_transaction_read_only = on;
		ALTER ROLE hasty SET default_transaction_deferrable = on;
		ALTER ROLE hasty SET synchronous_commit = off;
		ALTER ROLE hasty SET datestyle = 'SQL, DMY';
		ALTER ROLE hasty SET timezone = 'Asia/Kolkata';
		ALTER ROLE hasty SET search_path = ''`)
	// With these three defaults every transaction of the role waits for this one.
	plain(t, server.DSN("postgres"), "CREATE TABLE any_table ()", "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO any_table DEFAULT VALUES")
	h := acquire(t, config(t, server.DSN("postgres"), exclusive(7)))
	next := contend(t, config(t, dsn, exclusive(7)))
	inLine(t, server, id(7), 1)
	stays(t, next, 3*time.Second)
	release(t, h)
	keeps(t, next.held(t).Session, 2*lease)
	if got := next.said(); !slices.Equal(got, []string{"waiting"}) {
		t.Errorf("it said %v", got)
	}
}

// TestLyingServer: servers exist that answer true and lock nothing. This one is PostgreSQL whose
// functions are replaced by some that do so.
func TestLyingServer(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	for _, function := range []string{"pg_try_advisory_lock", "pg_try_advisory_xact_lock"} {
		query(t, server, "CREATE OR REPLACE FUNCTION pg_catalog."+function+"(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
	}
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	for name, cfg := range map[string]lock.Config{"session": cfg, "transaction": inTransaction(cfg)} {
		c := contend(t, cfg)
		<-c.done
		if kindOf(c.err) != session.Unsafe || !strings.Contains(c.err.Error(), "pg_locks") {
			t.Errorf("%s: %v, want a refusal", name, c.err)
		}
	}
}

// TestRejectedBeforeDelay: if the server rejects the question before a lock-delay, that is the
// server's doing, and not a fault of pglead itself. A run that waits outlives it if it passes, as
// when somebody has canceled the query. Here a missing right is the reason.
func TestRejectedBeforeDelay(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, as(t, server, "cron"), exclusive(11))
	b := lock.NewBid(open(t, cfg), cfg, true)
	if !try(t, b) {
		t.Fatal("refused")
	}
	query(t, server, "REVOKE EXECUTE ON FUNCTION pg_backend_pid() FROM PUBLIC")
	if _, err := b.Settle(t.Context()); kindOf(err) != session.Denied || !strings.HasPrefix(fmt.Sprint(err), "lock 11: ") {
		t.Errorf("the start: %v", err)
	}
}

// TestTokensGrowAcrossModes: the tokens of one lock can be compared, in whatever way each run holds
// the lock.
func TestTokensGrowAcrossModes(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := server.DSN("postgres")
	last := int64(0)
	for name, cfg := range map[string]lock.Config{
		"session":     config(t, dsn, exclusive(1)),
		"transaction": inTransaction(config(t, dsn, exclusive(1))),
		"pooler":      inTransaction(config(t, pooled(t, server, localpg.Superuser, "transaction", 2), exclusive(1))),
		"shared":      config(t, dsn, shared(1)),
		"several":     config(t, dsn, exclusive(1, 2)),
		"slots":       config(t, dsn, slots(1, 2)),
		"pair":        config(t, dsn, lock.Claim{IDs: []lockkey.ID{{Number: 1, Pair: true}}}),
	} {
		h := acquire(t, cfg)
		if h.Token <= last {
			t.Errorf("%s: token %d after %d", name, h.Token, last)
		}
		last = h.Token
		release(t, h)
	}
}

// TestOlderThanItSeemed: a first try finds a server that seems to have come up just now, and then
// learns that it is older. The delay is the rest of the lock-delay.
func TestOlderThanItSeemed(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.Contains(sql, "logical replication launcher") {
			return fmt.Sprintf("SELECT %f", (longDelay - time.Second).Seconds())
		}
		return sql
	}), exclusive(7))
	cfg.PrivateServer = false // so that the server's age counts
	c := contend(t, cfg)
	release(t, c.held(t))
	if !strings.HasSuffix(c.texts[0], "the command starts within 1s") || len(c.texts) != 1 {
		t.Errorf("it says %q", c.texts)
	}
}

// TestPrivateServerCameUp: only this machine's holders reach a private server, so all have seen that it
// went down. But with a lost-grace their commands may still be ending.
func TestPrivateServerCameUp(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	release(t, acquire(t, cfg))
	cfg.LostGrace = longDelay
	graceful := contend(t, cfg)
	eventually(t, "it waits for the end of the grace", func() bool { return delayed(graceful) })
	if !graceful.waits() {
		t.Error("it has not waited")
	}
}
