package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/doctor"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// examined is what Examine found.
type examined struct {
	t      *testing.T
	checks []checkup.Check
	kind   session.Kind // of the error
}

func examine(t *testing.T, cfg session.Config) examined {
	t.Helper()
	return examineSilence(t, cfg, false)
}

func examineSilence(t *testing.T, cfg session.Config, idle bool) examined {
	t.Helper()
	found, err := doctor.Examine(t.Context(), doctor.Config{Session: cfg, LockDelay: leasetime.DeadAfter(cfg.Lease, 0), Idle: idle})
	for _, c := range found.Database {
		t.Logf("%-4s  %-10s  %s -> %s", c.Status, c.Name, c.Seen, c.Advice)
	}
	if len(found.Machine) == 0 {
		t.Error("nothing about this machine")
	}
	return examined{t, found.Database, kindOf(err)}
}

// want asks for a check of this status whose text or advice has that in it.
func (e examined) want(name string, status checkup.Status, text string) {
	e.t.Helper()
	for _, c := range e.checks {
		if c.Name == name && c.Status == status && strings.Contains(c.Seen+" -> "+c.Advice, text) {
			return
		}
	}
	e.t.Errorf("no %s of %s with %q", status, name, text)
}

func (e examined) wantError(kind session.Kind) {
	e.t.Helper()
	if e.kind != kind {
		e.t.Errorf("an error of kind %d, want %d", e.kind, kind)
	}
}

func TestExamineRole(t *testing.T) {
	t.Parallel()
	port := testserver.Port(t)
	server := start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port, "max_connections": "20", "lock_timeout": "7s", "fsync": "off"})
	query(t, server, "CREATE ROLE cron LOGIN; CREATE ROLE rds_superuser")
	query(t, server, "ALTER ROLE ALL SET statement_timeout = '1s'; ALTER ROLE cron SET statement_timeout = '2s'; ALTER DATABASE postgres SET statement_timeout = '3s'")
	query(t, server, "ALTER ROLE cron IN DATABASE postgres SET idle_session_timeout = '4s'")
	e := examine(t, config(t, "host=127.0.0.1 sslmode=disable user=cron dbname=postgres port="+port))
	e.wantError(0)
	e.want("server", checkup.Warning, "fsync off")
	e.want("primary", checkup.Note, "a first try that succeeds waits")
	e.want("path", checkup.OK, "no pooler or proxy in between")
	e.want("TLS", checkup.OK, "loopback")
	for _, text := range []string{"statement_timeout 2s (role cron)", "idle_session_timeout 4s (role cron in database postgres)", "lock_timeout 7s (server)"} {
		e.want("time-outs", checkup.OK, text)
	}
	e.want("settings", checkup.OK, "keepalives after 6 s, every 1 s, 4 times, tcp_user_timeout 6000 ms")
	e.want("slots", checkup.OK, "of the server's 17 connections")
	e.want("notify", checkup.OK, "arrived")
	e.want("end others", checkup.Note, "GRANT pg_signal_backend TO cron")
	e.want("lock", checkup.OK, "refused to a second session")
	// The role's own idle_session_timeout of 4s does not apply to a holder's session.
	e = examineSilence(t, config(t, "host=127.0.0.1 sslmode=disable user=cron dbname=postgres port="+port), true)
	e.want("silence", checkup.OK, "silent for 6s")

	query(t, server, "ALTER DATABASE postgres CONNECTION LIMIT 8; GRANT pg_signal_backend TO cron")
	// The lock needs this function, and administrators seldom revoke it.
	query(t, server, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
	e = examine(t, config(t, "host=127.0.0.1 sslmode=disable user=cron dbname=postgres port="+relay(t, "127.0.0.1:"+port)))
	e.wantError(session.Denied)
	e.want("path", checkup.Note, "no pooler, but a proxy, tunnel or address translation")
	e.want("path", checkup.Note, "it must not end a connection that is silent for the lease, 6s,")
	e.want("slots", checkup.Warning, "of the database's 8")
	e.want("end others", checkup.OK, "pg_signal_backend")
	e.want("lock", checkup.Fail, "permission denied for function pg_control_system")
	query(t, server, "GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")

	// The login of a run looks for a ledger by this function, and so the run fails.
	query(t, server, "REVOKE EXECUTE ON FUNCTION query_to_xml(text, boolean, boolean, text) FROM PUBLIC")
	for _, transaction := range []bool{false, true} {
		cfg := config(t, "host=127.0.0.1 sslmode=disable user=cron dbname=postgres port="+port)
		cfg.Transaction = transaction
		e = examine(t, cfg)
		e.wantError(session.Denied)
		e.want("ledger", checkup.Note, "not known: permission denied for function query_to_xml")
		e.want("lock", checkup.Fail, "permission denied for function query_to_xml (42501)")
		e.want("lock", checkup.Fail, "-> by default every role may use that: grant EXECUTE on the function, or SELECT on the view, to this role again; --ledger off does without it")
	}
}

// TestExamineSeen: what others see of a role's pgleads, with statements that work for any name.
func TestExamineSeen(t *testing.T) {
	t.Parallel()
	port := testserver.Port(t)
	server := start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	query(t, server, `CREATE ROLE "A guest" LOGIN`)
	cfg := config(t, "host=127.0.0.1 sslmode=disable user='A guest' dbname=postgres port="+port)
	e := examine(t, cfg)
	e.want("see others", checkup.Note, `if it should: GRANT pg_read_all_stats TO "A guest"`)
	e.want("end others", checkup.Note, `if it should: GRANT pg_signal_backend TO "A guest"`)
	query(t, server, `CREATE ROLE crew; GRANT crew TO "A guest"; ALTER ROLE "A guest" SET role = crew`)
	e = examine(t, cfg)
	e.wantError(0)
	e.want("see others", checkup.Warning, "the role that logs in acts as crew (SET role), which does not see what its own pgleads run")
	e.want("see others", checkup.Warning, "GRANT pg_read_all_stats, pg_signal_backend TO crew; or ALTER ROLE … RESET role")
	query(t, server, `GRANT pg_read_all_stats TO crew`)
	e = examine(t, cfg)
	e.want("see others", checkup.OK, "pg_read_all_stats")
	query(t, server, `ALTER ROLE "A guest" RESET role; REVOKE pg_read_all_stats FROM crew`)
	query(t, server, `ALTER ROLE "A guest" SET track_activities = off`)
	e = examine(t, cfg)
	e.wantError(0)
	e.want("see others", checkup.Warning, "track_activities is off: nobody sees what this role's pgleads run")
	e.want("see others", checkup.Warning, `as a superuser: ALTER ROLE "A guest" SET track_activities = on`)
}

// TestExamineReporter: a role whose transactions wait for those of others, and may not write, can
// hold locks, since nothing that pglead asks does so.
func TestExamineReporter(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	query(t, server, `CREATE ROLE reporter LOGIN; CREATE TABLE any_table ();
		ALTER ROLE reporter SET default_transaction_isolation = serializable;
		ALTER ROLE reporter SET default_transaction_read_only = on;
		ALTER ROLE reporter SET default_transaction_deferrable = on`)
	writer, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writer.Close(context.Background()) })
	if _, err := writer.Exec(t.Context(), "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO any_table DEFAULT VALUES").ReadAll(); err != nil {
		t.Fatal(err)
	}
	for _, transaction := range []bool{false, true} {
		cfg := config(t, strings.Replace(server.DSN("postgres"), "user="+localpg.Superuser, "user=reporter", 1))
		cfg.Transaction = transaction
		e := examine(t, cfg)
		e.wantError(0)
		e.want("settings", checkup.OK, "timeout")
		e.want("lock", checkup.OK, "granted")
	}
	client, err := session.OpenClient(t.Context(), config(t, strings.Replace(server.DSN("postgres"), "user="+localpg.Superuser, "user=reporter", 1)))
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
}

// TestExamineFullQueue: a queue of notifications that nobody needs any more is freed, and how it
// was is shown. One that a listener keeps full is a failure.
func TestExamineFullQueue(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	fill := testserver.FillQueue(t, server)
	fill()
	e := examine(t, config(t, server.DSN("postgres")))
	e.want("notify", checkup.Warning, "too many notifications in the NOTIFY queue (54000); its listeners are done with it, and it is free again -> a session that listened")
	e.wantError(0)
	e = examine(t, config(t, server.DSN("postgres")))
	e.want("notify", checkup.OK, "arrived")

	fill()
	query(t, server, "CREATE OR REPLACE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS double precision LANGUAGE sql AS 'SELECT 1::float8'")
	stays, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stays.Close(context.Background()) })
	if _, err := stays.Exec(t.Context(), "LISTEN zzz; BEGIN; SELECT 1").ReadAll(); err != nil {
		t.Fatal(err)
	}
	e = examine(t, config(t, server.DSN("postgres")))
	e.want("notify", checkup.Fail, fmt.Sprintf("end the oldest one in pg_stat_activity; among those idle in a transaction that is process %d", stays.PID()))
}

// relay passes connections on, as HAProxy does, and returns its port.
func relay(t *testing.T, to string) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			pass := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.Close()
			}
			go pass(near, far)
			go pass(far, near)
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// TestExamineTLS sets HOME, and so runs beside no other test.
func TestExamineTLS(t *testing.T) {
	_, port, certificate := testserver.StartTLS(t, "db.example")
	dsn := "host=db.example hostaddr=127.0.0.1 user=pglead dbname=postgres port=" + port
	e := examine(t, config(t, dsn))
	e.want("TLS", checkup.Note, "TLS 1.3")
	e.want("TLS", checkup.Note, "sslmode=verify-full")
	for _, mode := range []string{"verify-ca", "verify-full"} {
		examine(t, config(t, dsn+" sslrootcert="+certificate+" sslmode="+mode)).want("TLS", checkup.OK, "certificate verified")
	}
	t.Setenv("HOME", t.TempDir())
	list := filepath.Join(os.Getenv("HOME"), ".postgresql", "root.crl")
	if err := errors.Join(os.Mkdir(filepath.Dir(list), 0o700), os.WriteFile(list, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	examine(t, config(t, dsn+" sslrootcert="+certificate+" sslmode=verify-full")).
		want("TLS", checkup.Note, fmt.Sprintf("certificate verified, but not against %q: psql looks there for revoked certificates, and pglead does not", list))
}

// TestExamineNoSenders: without WAL senders there are no standbys for which a commit waits.
func TestExamineNoSenders(t *testing.T) {
	t.Parallel()
	cfg := config(t, start(t, map[string]string{"synchronous_standby_names": "a", "max_wal_senders": "0"}).DSN("postgres"))
	examine(t, cfg).want("standbys", checkup.Note, "waits for no standby")
	cfg.Quorum = true
	e := examine(t, cfg)
	e.wantError(session.NoStandbys)
	e.want("standbys", checkup.Fail, "max_wal_senders = 0")
}

func TestExamineCluster(t *testing.T) {
	t.Parallel()
	primary := start(t, nil)
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	hosts := func(a, b *localpg.Server) string {
		return "host=" + a.Socket + "," + b.Socket + " user=pglead dbname=postgres"
	}
	both := hosts(standby, primary)
	eventually(t, "the primary is older than the lock-delay", func() bool {
		return query(t, primary, "SELECT clock_timestamp() - pg_postmaster_start_time() > interval '5 s'")[0] == "t"
	})

	e := examine(t, config(t, standby.DSN("postgres")))
	e.wantError(session.Standby)
	e.want("primary", checkup.Fail, "connect to the primary")

	e = examine(t, config(t, both))
	e.wantError(0)
	e.want("primary", checkup.OK, "timeline 1")
	e.want("hosts", checkup.OK, standby.Socket+":5432 standby, ")
	e.want("standbys", checkup.Note, "1 connected, none synchronous")
	// pgconn sends the request to cancel a commit to the first of several unix sockets.
	cfg := config(t, hosts(primary, standby))
	cfg.Quorum = true
	e = examine(t, cfg)
	e.wantError(session.NoStandbys)
	e.want("standbys", checkup.Fail, "synchronous_standby_names is empty")

	query(t, primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	query(t, primary, "SELECT pg_reload_conf()")
	eventually(t, "a synchronous standby", func() bool {
		return query(t, primary, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'")[0] == "1"
	})
	e = examine(t, cfg)
	e.wantError(0)
	e.want("standbys", checkup.OK, "--quorum waits for them")
	e.want("lock", checkup.OK, "granted")
	examine(t, config(t, both)).want("standbys", checkup.Note, "with --quorum")

	remove()
	eventually(t, "no standby", func() bool {
		return query(t, primary, "SELECT count(*) FROM pg_stat_replication")[0] == "0"
	})
	e = examine(t, cfg)
	e.wantError(session.Unreachable)
	e.want("hosts", checkup.Warning, standby.Socket+":5432 no server socket there")
	e.want("standbys", checkup.Warning, "none is connected")
	e.want("lock", checkup.Fail, "the synchronous standbys do not confirm the commit")

	e = examine(t, config(t, primary.DSN("postgres")))
	e.want("notify", checkup.OK, "arrived")
	e.want("lock", checkup.OK, "granted")

	other := start(t, nil)
	e = examine(t, config(t, hosts(primary, other)))
	e.want("hosts", checkup.Fail, "exclude nobody on another")
}

// TestExaminePooler: a pooler with one connection has none for the token.
func TestExaminePooler(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	pooler := func(size, idle string) string {
		dsn, _ := testserver.Pooler(t, server, localpg.Superuser, map[string]string{
			"pool_mode": "transaction", "default_pool_size": size, "query_wait_timeout": "1", "idle_transaction_timeout": idle,
		})
		return dsn
	}
	wide := pooler("2", "0")
	e := examine(t, config(t, wide))
	e.wantError(session.Unsafe)
	e.want("path", checkup.Fail, "use --transaction")
	e.want("slots", checkup.OK, "of the server's")

	cfg := config(t, wide)
	cfg.Transaction = true
	e = examine(t, cfg)
	e.wantError(0)
	e.want("path", checkup.OK, "what --transaction is for")
	e.want("settings", checkup.OK, "idle_in_transaction_session_timeout 6s")
	e.want("lock", checkup.OK, "refused to a second session")

	cfg.Lease = 3 * time.Second
	examineSilence(t, cfg, true).want("silence", checkup.OK, "silent for 3s")
	cfg.Database = config(t, pooler("2", "1")).Database
	examineSilence(t, cfg, true).want("silence", checkup.Fail, "idle transaction timeout")

	cfg = config(t, pooler("1", "0"))
	cfg.Transaction = true
	cfg.ConnectTimeout = 5 * time.Second
	e = examine(t, cfg)
	e.wantError(session.Unreachable)
	e.want("lock", checkup.Fail, "has to leave one free")
}
