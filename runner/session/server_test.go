package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/pgtest"
	"github.com/pglead/pglead/runner/session"
)

// start starts a throwaway server for a test.
func start(t *testing.T, settings map[string]string) *pgtest.Server {
	t.Helper()
	server, remove, err := pgtest.Throwaway(settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	return server
}

// config is a session's configuration with a lease that is short for a person
// and long for a slow machine.
func config(t *testing.T, dsn string) session.Config {
	t.Helper()
	database, err := session.ParseDSN(dsn, "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	return session.Config{Database: database, Lease: 6 * time.Second, ConnectTimeout: 10 * time.Second, ApplicationName: "pglead:test"}
}

// tested is a session with holds on locks by their numbers.
type tested struct {
	*session.Session
	holds map[int64]*session.Hold
}

func open(t *testing.T, dsn string) tested {
	t.Helper()
	return openWith(t, config(t, dsn))
}

func openWith(t *testing.T, cfg session.Config) tested {
	t.Helper()
	s, err := session.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return tested{s, map[int64]*session.Hold{}}
}

// exclusive is the claim to locks of these numbers.
func exclusive(numbers ...int64) session.Claim {
	var c session.Claim
	for _, n := range numbers {
		c.Locks = append(c.Locks, session.Lock{ID: lockkey.ID{Number: n}})
	}
	return c
}

// hold is this session's one hold on a lock.
func (s tested) hold(number int64) *session.Hold {
	if s.holds[number] == nil {
		s.holds[number] = s.Claim(exclusive(number))
	}
	return s.holds[number]
}

func try(t *testing.T, h *session.Hold) bool {
	t.Helper()
	granted, err := h.Try(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return granted
}

func confirm(t *testing.T, h *session.Hold) session.Grant {
	t.Helper()
	grant, err := h.Confirm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return grant
}

func query(t *testing.T, server *pgtest.Server, sql string) []string {
	t.Helper()
	values, err := server.Query("postgres", sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

// eventually waits until the condition holds; a test that waits in vain fails.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for began := time.Now(); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("never: %s", what)
		}
	}
}

func kindOf(err error) session.Kind {
	var e *session.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}

func TestLockExcludesAndTokensGrow(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	a, b := open(t, dsn), open(t, dsn)
	const id = -8996774569131282592 // negative: both halves have their top bit set or not
	if !try(t, a.hold(id)) || try(t, b.hold(id)) {
		t.Fatal("want the lock for a and not for b")
	}
	first := confirm(t, a.hold(id))
	if first.Token>>48 != 1 || first.SystemID != query(t, server, "SELECT system_identifier FROM pg_control_system()")[0] {
		t.Errorf("grant %+v is not of timeline 1 of this cluster", first)
	}
	again := *a.hold(id)
	if err := a.hold(id).Unlock(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if !try(t, b.hold(id)) {
		t.Fatal("want the lock for b")
	}
	if second := confirm(t, b.hold(id)); second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	if err := again.Unlock(t.Context(), false); err == nil {
		t.Error("a released a lock that it did not hold")
	}
}

// TestTokenSurvivesCrash: a role whose commits don't wait for the disk would
// be given the same transaction number again after a crash.
func TestTokenSurvivesCrash(t *testing.T) {
	server := start(t, map[string]string{"wal_writer_delay": "10s"})
	query(t, server, "CREATE ROLE hasty LOGIN; ALTER ROLE hasty SET synchronous_commit = off")
	dsn := strings.Replace(server.DSN("postgres"), pgtest.Superuser, "hasty", 1)
	last := int64(0)
	for range 3 {
		s := open(t, dsn)
		if !try(t, s.hold(1)) {
			t.Fatal("the lock is taken")
		}
		grant := confirm(t, s.hold(1))
		if err := server.Stop(syscall.SIGQUIT); err != nil {
			t.Fatal(err)
		}
		if grant.Token <= last {
			t.Errorf("token %d after %d", grant.Token, last)
		}
		last = grant.Token
		if err := server.StartLogged(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRoleDefaults: what an administrator set for the role must not end a
// session that holds a lock.
func TestRoleDefaults(t *testing.T) {
	server := start(t, nil)
	query(t, server, `CREATE ROLE hasty LOGIN;
		ALTER ROLE hasty SET idle_session_timeout = '100ms';
		ALTER ROLE hasty SET idle_in_transaction_session_timeout = '100ms';
		ALTER ROLE hasty SET statement_timeout = '2s';
		ALTER ROLE hasty SET lock_timeout = '1s';
		ALTER ROLE hasty SET default_transaction_read_only = on;
		ALTER ROLE hasty SET search_path = ''`)
	s := open(t, strings.Replace(server.DSN("postgres"), pgtest.Superuser, "hasty", 1))
	holder := open(t, server.DSN("postgres"))
	if !try(t, holder.hold(1)) {
		t.Fatal("the lock is taken")
	}
	s.Keep()
	granted, err := s.hold(1).Wait(t.Context(), 3*time.Second)
	if err != nil || granted {
		t.Fatalf("Wait: %v, %v; want to wait in vain for longer than the role's time-outs", granted, err)
	}
	if !try(t, s.hold(2)) {
		t.Fatal("the lock is taken")
	}
	confirm(t, s.hold(2))
}

func TestWait(t *testing.T) {
	server := start(t, map[string]string{"log_min_messages": "warning"})
	dsn := server.DSN("postgres")
	holder, waiter := open(t, dsn), open(t, dsn)
	if !try(t, holder.hold(7)) {
		t.Fatal("the lock is taken")
	}
	if granted, err := waiter.hold(7).Wait(t.Context(), 50*time.Millisecond); granted || err != nil {
		t.Fatalf("Wait on a held lock: %v, %v", granted, err)
	}
	result := make(chan error, 1)
	go func() {
		granted, err := waiter.hold(7).Wait(context.Background(), time.Minute)
		if err == nil && !granted {
			err = errors.New("not granted")
		}
		result <- err
	}()
	eventually(t, "the waiter stands in line", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")[0] == "1"
	})
	if err := holder.hold(7).Unlock(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if held := query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0]; held != "1" {
		t.Errorf("%s advisory locks after the hand-over, want 1", held)
	}
	log, err := os.ReadFile(server.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "ERROR") {
		t.Errorf("waiting left errors in the server's log:\n%s", log)
	}
}

func TestWaitWithoutPlpgsql(t *testing.T) {
	server := start(t, nil)
	query(t, server, "CREATE ROLE plain LOGIN; REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")
	s := open(t, strings.Replace(server.DSN("postgres"), pgtest.Superuser, "plain", 1))
	_, err := s.hold(7).Wait(t.Context(), time.Second)
	if err == nil || session.CanQueue(err) {
		t.Errorf("Wait without plpgsql: %v, CanQueue %v", err, session.CanQueue(err))
	}
	if !try(t, s.hold(7)) {
		t.Error("the session is of no use after that")
	}
}

// TestCloseWhileWaiting: a backend that goes on waiting would be granted a
// lock that nobody wants.
func TestCloseWhileWaiting(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	holder, waiter := open(t, dsn), open(t, dsn)
	if !try(t, holder.hold(7)) {
		t.Fatal("the lock is taken")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	waiting := func() bool {
		return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")[0] == "1"
	}
	go func() {
		for !waiting() {
			time.Sleep(time.Millisecond)
		}
		cancel(stop)
	}()
	if _, err := waiter.hold(7).Wait(ctx, time.Minute); !errors.Is(err, stop) {
		t.Fatalf("Wait: %v, want the context's cause", err)
	}
	waiter.Close()
	eventually(t, "the waiting backend ends", func() bool { return !waiting() })
}

func TestTerminated(t *testing.T) {
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	s.Keep()
	query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.BackendPID()))
	await(t, s)
	if err := s.Err(); !strings.Contains(err.Error(), "administrator command (57P01)") {
		t.Errorf("lost: %v", err)
	}
	if _, err := s.hold(1).Try(t.Context()); !errors.As(err, new(*session.LostError)) {
		t.Errorf("TryLock on a lost session: %v", err)
	}
}

// await waits for the loss for as long as the contract allows it to go
// unnoticed, and a good deal more, since machines are slow.
func await(t *testing.T, s tested) {
	t.Helper()
	select {
	case <-s.Lost():
	case <-time.After(30 * time.Second):
		t.Fatal("the loss went unnoticed")
	}
}

func TestServerKilled(t *testing.T) {
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	s.Keep()
	if err := server.Stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, s)
	if err := s.Err(); !strings.Contains(err.Error(), "server closed the connection") && !strings.Contains(err.Error(), "terminating connection") {
		t.Errorf("lost: %v", err)
	}
}

// TestSilentServer: a stopped backend answers no heartbeat, and the session
// gives itself up before the server would.
func TestSilentServer(t *testing.T) {
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	s.Keep()
	eventually(t, "a heartbeat is answered", func() bool {
		select {
		case <-s.Renewed():
			return true
		default:
			return false
		}
	})
	began := time.Now()
	backend, err := os.FindProcess(int(s.BackendPID()))
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Signal(syscall.SIGCONT) })
	await(t, s)
	if err := s.Err(); !errors.Is(err, session.ErrSilent) {
		t.Errorf("lost: %v, want ErrSilent", err)
	}
	if least := session.HolderShare(6*time.Second) - 6*time.Second/5; time.Since(began) < least/2 {
		t.Errorf("lost after %v: one late heartbeat is no silence", time.Since(began))
	}
}

// TestLeaseAtTheServer: a session that says nothing for a lease loses its
// lock by the server's own clock.
func TestLeaseAtTheServer(t *testing.T) {
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"))
	cfg.Lease = 3 * time.Second
	s := openWith(t, cfg) // and no Keep
	if !try(t, s.hold(7)) {
		t.Fatal("the lock is taken")
	}
	await(t, s)
	if err := s.Err(); !strings.Contains(err.Error(), "idle-session timeout (57P05)") {
		t.Errorf("lost: %v", err)
	}
	if other := open(t, server.DSN("postgres")); !try(t, other.hold(7)) {
		t.Error("the lock is still taken")
	}
}

func TestStandbyIsRefusedAndPrimaryIsFound(t *testing.T) {
	primary := start(t, map[string]string{"wal_level": "replica"})
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)

	_, err = session.Open(t.Context(), config(t, standby.DSN("postgres")))
	if kindOf(err) != session.Standby || !session.Passing(err) {
		t.Errorf("Open on a standby: %v", err)
	}
	both := fmt.Sprintf("host=%s,%s user=%s dbname=postgres", standby.Socket, primary.Socket, pgtest.Superuser)
	s := open(t, both)
	if pid := query(t, primary, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", s.BackendPID()))[0]; pid != "1" {
		t.Error("of standby and primary, the session is not on the primary")
	}
}

// TestLyingServer: servers exist that answer true and lock nothing. This one
// is PostgreSQL with its function replaced by such a one.
func TestLyingServer(t *testing.T) {
	server := start(t, nil)
	query(t, server, `CREATE OR REPLACE FUNCTION pg_catalog.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'`)
	s := open(t, server.DSN("postgres"))
	if !try(t, s.hold(7)) {
		t.Fatal("the server is honest")
	}
	_, err := s.hold(7).Confirm(t.Context())
	if kindOf(err) != session.Unsafe || !strings.Contains(err.Error(), "pg_locks") {
		t.Errorf("Confirm: %v, want a refusal", err)
	}
}

// pooled starts a pooler with connections for role, and returns its DSN.
func pooled(t *testing.T, server *pgtest.Server, role, mode string, connections int) (dsn string) {
	t.Helper()
	dsn, stop, err := server.Pooler(role, map[string]string{
		"pool_mode": mode, "default_pool_size": strconv.Itoa(connections), "query_wait_timeout": "2",
	})
	if errors.Is(err, pgtest.ErrNoPooler) && os.Getenv("CI") == "" {
		t.Skip("NOT TESTED: poolers, since there is", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return dsn
}

func TestPooler(t *testing.T) {
	server := start(t, nil)
	for _, mode := range []string{"session", "transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			dsn := pooled(t, server, pgtest.Superuser, mode, 1)
			_, err := session.Open(t.Context(), config(t, dsn))
			if kindOf(err) != session.Unsafe || !strings.Contains(err.Error(), "pooler") {
				t.Fatalf("Open: %v, want a refusal", err)
			}
			// The pooler's one connection to the server must be as it was.
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for setting, want := range map[string]string{"idle_session_timeout": "0", "application_name": "", "client_connection_check_interval": "0"} {
				out, err := exec.CommandContext(ctx, filepath.Join(server.Programs.Dir, "psql"), "-XAtq", dsn, "-c", "SHOW "+setting).CombinedOutput()
				got := strings.TrimSpace(string(out))
				if setting == "application_name" && got == "psql" {
					got = ""
				}
				if err != nil || got != want {
					t.Errorf("%s is %q after a refused session, want %q (%v)", setting, got, want, err)
				}
			}
		})
	}
}

// TestHandover: what a waiter knows when it is granted the lock.
func TestHandover(t *testing.T) {
	server := start(t, nil)
	dsn := server.DSN("postgres")
	const lockDelay = time.Hour // shows which way it was decided; nobody waits
	waitFor := func(t *testing.T, end func(t *testing.T, holder tested)) time.Duration {
		t.Helper()
		holder, waiter := open(t, dsn), open(t, dsn)
		if !try(t, holder.hold(7)) {
			t.Fatal("the lock is taken")
		}
		if err := waiter.hold(7).Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
		granted := make(chan error, 1)
		go func() {
			ok, err := waiter.hold(7).Wait(context.Background(), time.Minute)
			if err == nil && !ok {
				err = errors.New("not granted")
			}
			granted <- err
		}()
		eventually(t, "the waiter stands in line", func() bool {
			return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")[0] == "1"
		})
		end(t, holder)
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
		delay := waiter.Evidence(lockkey.ID{Number: 7}).Delay(lockDelay)
		waiter.Close()
		holder.Close()
		eventually(t, "the lock is free", func() bool {
			return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0] == "0"
		})
		return delay
	}
	clean := func(t *testing.T, holder tested) {
		t.Helper()
		confirm(t, holder.hold(7))
		if err := holder.hold(7).Unlock(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		if delay := waitFor(t, clean); delay != 0 {
			t.Fatalf("after a clean end the waiter waits %v", delay)
		}
	}
	for name, end := range map[string]func(t *testing.T, holder tested){
		"terminated": func(t *testing.T, holder tested) {
			t.Helper()
			query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(%d)", holder.BackendPID()))
		},
		"started and terminated": func(t *testing.T, holder tested) {
			t.Helper()
			confirm(t, holder.hold(7))
			query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(%d)", holder.BackendPID()))
		},
		"never started": func(t *testing.T, holder tested) {
			t.Helper()
			if err := holder.hold(7).Unlock(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if delay := waitFor(t, end); delay != lockDelay {
			t.Errorf("%s: the waiter waits %v", name, delay)
		}
	}
}

// TestFirstTryOnYoungServer: over TCP a lock that is free may be so because
// the server has just come up, or up again.
func TestFirstTryOnYoungServer(t *testing.T) {
	port, err := pgtest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	server := start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	tcp := fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres", port, pgtest.Superuser)
	const hour = time.Hour
	if delay := open(t, tcp).FirstTryDelay(hour); delay < hour/2 || delay > hour {
		t.Errorf("on a new server the first try waits %v of an hour", delay)
	}
	// The former holder may have come over TCP.
	if delay := open(t, fmt.Sprintf("host=%s port=%s user=%s dbname=postgres", server.Socket, port, pgtest.Superuser)).FirstTryDelay(hour); delay < hour/2 {
		t.Errorf("at the unix socket of a server with TCP the first try waits %v", delay)
	}
	if delay := open(t, start(t, nil).DSN("postgres")).FirstTryDelay(hour); delay != 0 {
		t.Errorf("on a server without TCP the first try waits %v", delay)
	}
	if delay := open(t, tcp).FirstTryDelay(time.Nanosecond); delay != 0 {
		t.Errorf("on a server of some age the first try waits %v", delay)
	}
	// A backend's crash ends all sessions but not the postmaster.
	s := open(t, tcp)
	before := query(t, server, "SELECT clock_timestamp()")[0]
	backend, err := os.FindProcess(int(s.BackendPID()))
	if err != nil {
		t.Fatal(err)
	}
	if err := backend.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Lost()
	eventually(t, "the crash of a backend shows", func() bool {
		since, err := server.Query("postgres", "SELECT pg_postmaster_start_time() < '"+before+"' AND (SELECT stats_reset FROM pg_stat_bgwriter) > '"+before+"'")
		return err == nil && since[0] == "t"
	})
	if delay := open(t, tcp).FirstTryDelay(hour); delay < hour-10*time.Minute {
		t.Errorf("after the crash of a backend the first try waits %v of an hour", delay)
	}
}

func TestQuorum(t *testing.T) {
	primary := start(t, map[string]string{"synchronous_standby_names": "*", "wal_receiver_status_interval": "100ms"})
	cfg := config(t, primary.DSN("postgres"))
	cfg.Quorum = true

	// No standby yet: the token's commit hangs, and it is given up.
	s := openWith(t, cfg)
	if !try(t, s.hold(7)) {
		t.Fatal("the lock is taken")
	}
	if _, err := s.hold(7).Confirm(t.Context()); kindOf(err) != session.Unreachable || !strings.Contains(err.Error(), "standbys do not confirm") {
		t.Errorf("Confirm without a standby: %v", err)
	}
	s.Close()

	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	s = openWith(t, cfg)
	if !try(t, s.hold(7)) {
		t.Fatal("the lock is taken")
	}
	grant, err := s.hold(7).Confirm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Keep()
	eventually(t, "both heartbeats renew the deadline", func() bool {
		select {
		case <-s.Renewed():
			return true
		case <-s.Lost():
			t.Fatal(s.Err())
			return false
		default:
			return false
		}
	})

	// The standby is stopped: the lock is lost, also if an administrator lets
	// the hanging commits go.
	if err := standby.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	receivers, err := exec.Command("pgrep", "-P", strconv.Itoa(standby.PID())).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(receivers)) {
		if err := exec.Command("kill", "-STOP", pid).Run(); err != nil {
			t.Fatal(err)
		}
	}
	cancelling := make(chan struct{})
	go func() {
		defer close(cancelling)
		for s.Err() == nil {
			_, _ = primary.Query("postgres", "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
			time.Sleep(50 * time.Millisecond)
		}
	}()
	await(t, s)
	<-cancelling
	if err := s.Err(); !strings.Contains(err.Error(), "synchronous standbys") {
		t.Errorf("lost: %v", err)
	}

	// The standby takes over, and the next token is larger.
	for _, pid := range append(strings.Fields(string(receivers)), strconv.Itoa(standby.PID())) {
		if err := exec.Command("kill", "-CONT", pid).Run(); err != nil {
			t.Fatal(err)
		}
	}
	if err := primary.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	next := open(t, standby.DSN("postgres"))
	if !try(t, next.hold(7)) {
		t.Fatal("the lock is taken")
	}
	if after := confirm(t, next.hold(7)); after.Token <= grant.Token || after.SystemID != grant.SystemID {
		t.Errorf("grant %+v after the promotion, %+v before", after, grant)
	}
}

func TestQuorumNeedsStandbys(t *testing.T) {
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"))
	cfg.Quorum = true
	s := openWith(t, cfg)
	if !try(t, s.hold(7)) {
		t.Fatal("the lock is taken")
	}
	if _, err := s.hold(7).Confirm(t.Context()); kindOf(err) != session.Unsafe || !strings.Contains(err.Error(), "synchronous_standby_names is empty") {
		t.Errorf("Confirm: %v", err)
	}
}
