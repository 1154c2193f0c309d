package session_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// TestRoleDefaults: settings that an administrator has made for the role must not end a session
// that holds a lock, nor a statement that takes long.
func TestRoleDefaults(t *testing.T) {
	server := start(t, nil)
	query(t, server, `CREATE ROLE hasty LOGIN;
		ALTER ROLE hasty SET idle_session_timeout = '100ms';
		ALTER ROLE hasty SET idle_in_transaction_session_timeout = '100ms';
		ALTER ROLE hasty SET statement_timeout = '1s';
		ALTER ROLE hasty SET lock_timeout = '500ms';
		ALTER ROLE hasty SET search_path = ''`)
	s := open(t, strings.Replace(server.DSN("postgres"), localpg.Superuser, "hasty", 1))
	holder := open(t, server.DSN("postgres"))
	if !take(t, holder, 1) {
		t.Fatal("the lock is taken")
	}
	holder.StartHeartbeat()
	s.StartHeartbeat()
	if _, err := s.Query(t.Context(), "SELECT pg_sleep(1.5)"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err := s.Query(t.Context(), "SELECT pg_advisory_lock(1)")
	if took := time.Since(began); !session.HasCode(err, session.LockNotAvailable) || took < leasetime.BeatEvery(config(t, server.DSN("postgres")).Lease) {
		t.Errorf("it waited for a lock for %v: %v", took, err)
	}
	if _, err := s.Query(t.Context(), session.PlainBeatQuery); err != nil {
		t.Error(err)
	}
}

// TestCloseCancels: a backend that goes on with a query for which nobody waits any more could take
// a lock that nobody wants.
func TestCloseCancels(t *testing.T) {
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	sleeps := func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")[0] == "1"
	}
	go func() {
		for !sleeps() {
			time.Sleep(time.Millisecond)
		}
		cancel(stop)
	}()
	if _, err := s.Ask(ctx, session.Request{SQL: []string{"SELECT pg_sleep(3600)"}}); !errors.Is(err, stop) {
		t.Fatalf("Ask: %v, want the context's cause", err)
	}
	s.Close()
	eventually(t, "the statement ends", func() bool { return !sleeps() })
}

// TestGoodbyeWithTheLastRequest: the goodbye travels with the last request, whose answer is still
// heard.
func TestGoodbyeWithTheLastRequest(t *testing.T) {
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	answers, err := s.Ask(t.Context(), session.Request{SQL: []string{"SELECT 41 + 1"}, Last: true})
	if err != nil || len(answers) != 1 || !answers[0].Is("42") {
		t.Errorf("the last request: %v, %v", answers, err)
	}
	eventually(t, "the backend ends", func() bool {
		return query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", s.BackendPID()))[0] == "0"
	})
	if err := s.Err(); err != nil {
		t.Errorf("lost: %v", err)
	}
}

// TestNotify: an announcement comes with the number of the session that made it, and in the order
// of all that the server sends. A session does not hear its own announcements.
func TestNotify(t *testing.T) {
	server := start(t, nil)
	s, other := open(t, server.DSN("postgres")), open(t, server.DSN("postgres"))
	heard := make(chan string, 10)
	s.OnNotify("c", func(pid uint32, payload string) { heard <- fmt.Sprint(pid, " ", payload) })
	ask := func(s *session.Session, sql ...string) {
		t.Helper()
		if _, err := s.Query(t.Context(), sql...); err != nil {
			t.Fatal(err)
		}
	}
	ask(s, "LISTEN c", "LISTEN d")
	ask(other, "NOTIFY c, 'one'", "NOTIFY d, 'of another channel'")
	ask(s, "NOTIFY c, 'own'")
	ask(other, "NOTIFY c, 'two'")
	then := false
	_, err := s.Ask(t.Context(), session.Request{SQL: []string{"SELECT 1", "SELECT 2"}, Then: func(answers []session.Rows) {
		then = len(answers) == 2 && answers[0][0][0] == "1" && answers[1][0][0] == "2"
		heard <- "the answer"
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !then {
		t.Error("a request's Then is not given the rows of each query")
	}
	for _, want := range []string{fmt.Sprint(other.BackendPID(), " one"), fmt.Sprint(other.BackendPID(), " two"), "the answer"} {
		if got := <-heard; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
	s.OnNotify("c", nil)
	ask(other, "NOTIFY c, 'to nobody'")
	ask(s, "SELECT 1")
	if len(heard) != 0 {
		t.Errorf("heard %q", <-heard)
	}
}

func TestTerminated(t *testing.T) {
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	s.StartHeartbeat()
	query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(%d)", s.BackendPID()))
	await(t, s)
	if err := s.Err(); !strings.Contains(err.Error(), "administrator command (57P01)") {
		t.Errorf("lost: %v", err)
	}
	if _, err := s.Query(t.Context(), session.PlainBeatQuery); !errors.As(err, new(*session.LostError)) {
		t.Errorf("a request on a lost session: %v", err)
	}
}

func TestServerKilled(t *testing.T) {
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	s.StartHeartbeat()
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
	s.StartHeartbeat()
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
	if least := leasetime.HolderShare(6*time.Second) - 6*time.Second/5; time.Since(began) < least/2 {
		t.Errorf("lost after %v: one late heartbeat is no silence", time.Since(began))
	}
}

// TestLeaseAtTheServer: a session that says nothing for a lease loses its
// lock by the server's own clock.
func TestLeaseAtTheServer(t *testing.T) {
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"))
	cfg.Lease = 3 * time.Second
	s := openWith(t, cfg) // without a heartbeat
	if !take(t, s, 7) {
		t.Fatal("the lock is taken")
	}
	await(t, s)
	if err := s.Err(); !strings.Contains(err.Error(), "idle-session timeout (57P05)") {
		t.Errorf("lost: %v", err)
	}
	// The server reports the session's end before it frees the lock.
	other := open(t, server.DSN("postgres"))
	testserver.Eventually(t, "the lock is free", func() bool { return take(t, other, 7) })
}

// TestCloseIsNoLoss: a session that its owner ends is not lost, whether a request is under way,
// sends the goodbye, or follows.
func TestCloseIsNoLoss(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	for name, ask := range map[string]func(s *session.Session) error{
		"idle": func(*session.Session) error { return nil },
		"parted": func(s *session.Session) error {
			_, err := s.Ask(t.Context(), session.Request{SQL: []string{"SELECT 1"}, Last: true})
			return err
		},
		"busy": func(s *session.Session) error {
			go func() { _, _ = s.Query(t.Context(), "SELECT pg_sleep(1000) /* busy */") }()
			eventually(t, "the request is under way", func() bool {
				return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%/* busy */' AND pid <> pg_backend_pid()")[0] == "1"
			})
			return nil
		},
	} {
		s := open(t, server.DSN("postgres"))
		if err := ask(s); err != nil {
			t.Fatal(err)
		}
		s.Close()
		<-s.Done()
		if err := s.Err(); err != nil {
			t.Errorf("%s: lost: %v", name, err)
		}
		if _, err := s.Query(t.Context(), "SELECT 1"); err == nil {
			t.Errorf("%s: a closed session answers", name)
		}
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
	both := fmt.Sprintf("host=%s,%s user=%s dbname=postgres", standby.Socket, primary.Socket, localpg.Superuser)
	s := open(t, both)
	if pid := query(t, primary, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", s.BackendPID()))[0]; pid != "1" {
		t.Error("of standby and primary, the session is not on the primary")
	}
}

// TestAgeOfYoungServer: a server has just started or restarted.
func TestAgeOfYoungServer(t *testing.T) {
	port := testserver.Port(t)
	server := start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	tcp := fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres", port, localpg.Superuser)
	const most = 30 * time.Minute // after any start, on a slow machine
	for _, dsn := range []string{
		tcp,
		fmt.Sprintf("host=%s port=%s user=%s dbname=postgres", server.Socket, port, localpg.Superuser),
		start(t, nil).DSN("postgres"), // without TCP
	} {
		if age := open(t, dsn).ServerAge(); age <= 0 || age > most {
			t.Errorf("%s: a new server is %v old", dsn, age)
		}
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
	<-s.Done()
	eventually(t, "the crash of a backend shows", func() bool {
		since, err := server.Query("postgres", "SELECT pg_postmaster_start_time() < '"+before+"' AND (SELECT stats_reset FROM pg_stat_bgwriter) > '"+before+"'")
		return err == nil && since[0] == "t"
	})
	if age := open(t, tcp).ServerAge(); age > 10*time.Minute {
		t.Errorf("after the crash of a backend the server is %v old", age)
	}
}

// TestLimitIsPerAnswer: what is limited is one answer, not all of them together.
func TestLimitIsPerAnswer(t *testing.T) {
	t.Parallel()
	s := open(t, start(t, nil).DSN("postgres"))
	for range 24 { // MiB, where the login and one message may have 16
		if rows, err := s.Query(t.Context(), "SELECT repeat('x', 1 << 20)"); err != nil || len(rows) != 1 || len(rows[0][0]) != 1<<20 {
			t.Fatal(err)
		}
	}
}

// TestSecondAtTheSameAddress: the second session goes where the first one went, though the host's
// name leads elsewhere by now.
func TestSecondAtTheSameAddress(t *testing.T) {
	t.Parallel()
	port := testserver.Port(t)
	start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	cfg := config(t, fmt.Sprintf("host=db.example port=%s user=%s dbname=postgres", port, localpg.Superuser))
	cfg.Transaction = true
	addresses := []string{"127.0.0.1", "127.0.0.2"} // both are tried with TLS, and then the first without
	cfg.Database.LookupFunc = func(context.Context, string) ([]string, error) { return addresses, nil }
	s := openWith(t, cfg)
	addresses = []string{"127.0.0.2"}
	second, err := s.Second(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := second.Socket().RemoteAddr().String(); got != "127.0.0.1:"+port {
		t.Errorf("the second session goes to %s", got)
	}
}

// TestSecondSessionOutlivesTheLease: the second session of a quorum outlives the lease, though
// nobody needs it yet.
func TestSecondSessionOutlivesTheLease(t *testing.T) {
	t.Parallel()
	primary := start(t, map[string]string{"synchronous_standby_names": "*"})
	_, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	cfg := config(t, primary.DSN("postgres"))
	cfg.Lease, cfg.Quorum = 3*time.Second, true
	s := openWith(t, cfg)
	second, err := s.Second(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-second.Done():
		t.Errorf("lost: %v", second.Err())
	case <-time.After(2 * cfg.Lease):
	}
}

// TestErrorsAreSignsOfLife: the server answers each heartbeat with an error, for instance since its
// lock table is full and the heartbeat asks for a lock. The session lives on.
func TestErrorsAreSignsOfLife(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"))
	cfg.Lease = 3 * time.Second
	s := openWith(t, cfg)
	s.SetHeartbeat(session.Heartbeat{Every: leasetime.BeatEvery(cfg.Lease), Request: session.Request{
		SQL: []string{"SELECT 1 / 0"}, Then: func([]session.Rows) { t.Error("an error is no answer") },
	}})
	s.StartHeartbeat()
	select {
	case <-s.Done():
		t.Errorf("lost: %v", s.Err())
	case <-time.After(2 * cfg.Lease):
	}
}

// TestFailedQueryHasNoRows: the server may send a row before the error that undoes what it tells.
func TestFailedQueryHasNoRows(t *testing.T) {
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	answers, err := s.Ask(t.Context(), session.Request{SQL: []string{
		"SELECT 1", "SELECT 2, pg_cancel_backend(pg_backend_pid())", "SELECT 3",
	}})
	if !session.HasCode(err, session.QueryCanceled) || len(answers) != 3 || !answers[0].Is("1") || len(answers[1]) != 0 || !answers[2].Is("3") {
		t.Errorf("%v, %v", answers, err)
	}
}
