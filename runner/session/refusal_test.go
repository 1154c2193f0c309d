package session

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestPasswordRefused: PostgreSQL says the same about a wrong password, one that has expired (VALID
// UNTIL), and a role that doesn't exist or has none, so the hint names all of these. If no password
// was given, there is another hint.
func TestPasswordRefused(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "28P01", Message: `password authentication failed for user "cron"`}
	for password, want := range map[string]string{
		"hunter2": "wrong or expired password, or no such role, or one without a password: only the server's log tells which", "": "~/.pgpass",
	} {
		text, kind, hint := describePgError(refused, &pgconn.Config{User: "cron", Password: password})
		if kind != Denied || !strings.Contains(hint, want) || strings.Contains(text+hint, "hunter2") {
			t.Errorf("with the password %q: %q, kind %d, hint %q", password, text, kind, hint)
		}
	}
}

// TestSecondRefused: through a pooler a second connection that fails without a reason points at the
// pool. A full disk, or transaction numbers that are used up, have hints of their own.
func TestSecondRefused(t *testing.T) {
	t.Parallel()
	s := &Session{cfg: Config{Transaction: true}}
	for want, refused := range map[string]*pgconn.PgError{
		"leave one free":          {Code: "08P01", Message: "query_wait_timeout"},
		"free space":              {Code: DiskFull, Message: "could not extend file"},
		"vacuum that database in": {Code: programLimitExceeded, Message: "no more transaction numbers", Hint: "Stop the postmaster and vacuum that database in single-user mode."},
	} {
		var e *Error
		if !errors.As(s.secondError(refused), &e) || e.Kind != Unreachable || !strings.Contains(e.Hint, want) {
			t.Errorf("%s: %+v", refused.Message, e)
		}
	}
	var e *Error
	if !errors.As(s.secondError(&Error{Kind: Unreachable, LoginRejected: true, Full: true, err: errors.New("full")}), &e) || !e.LoginRejected || !e.Full {
		t.Errorf("a rejected login: %+v", e)
	}
}

// TestRefusalHints: if a single statement helps, it is in the hint, with names as SQL writes them.
func TestRefusalHints(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code, message, hint string
		kind                Kind
	}{
		{"53300", "sorry, too many clients already", "max_connections is the server's limit, and pg_stat_activity shows who has them", Unreachable},
		{"53300", `too many connections for role "Cron"`, `ALTER ROLE "Cron" CONNECTION LIMIT sets how many it may have`, Unreachable},
		{"53300", `too many connections for database "my app"`, `ALTER DATABASE "my app" CONNECTION LIMIT sets how many it may have`, Unreachable},
		{"57014", "canceling statement due to statement timeout", `is the statement_timeout of "Cron", or of the database, too short for the login's question?`, Unreachable},
		{"42501", `permission denied for database "my app"`, `GRANT CONNECT ON DATABASE "my app" TO "Cron"`, Denied},
		{"55000", `database "my app" is not currently accepting connections`, `ALTER DATABASE "my app" ALLOW_CONNECTIONS true`, Denied},
	} {
		_, kind, hint := describePgError(&pgconn.PgError{Code: tt.code, Message: tt.message}, &pgconn.Config{User: "Cron", Database: "my app"})
		if kind != tt.kind || hint != tt.hint {
			t.Errorf("%s: kind %d, hint %q", tt.message, kind, hint)
		}
	}
}

// TestLoginTrigger: a trigger that refuses a login with the code of pg_hba.conf has its own hint.
func TestLoginTrigger(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"call the owner": "call the owner", "": "pg_hba.conf on the server says who may log in from where"} {
		if _, kind, hint := describePgError(&pgconn.PgError{Code: "28000", Message: "closed", Hint: given}, &pgconn.Config{User: "cron"}); kind != Denied || hint != want {
			t.Errorf("kind %d, hint %q, want %q", kind, hint, want)
		}
	}
}

// TestHintsInAnotherLanguage: the hints are the same where the server says all in another language
// (lc_messages). Only a role that does not exist and one that may not log in can't be told apart
// then.
func TestHintsInAnotherLanguage(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, nil)
	for _, sql := range []string{
		"CREATE ROLE mute", `CREATE ROLE "Full" LOGIN CONNECTION LIMIT 0`, "CREATE ROLE guest LOGIN",
		"CREATE DATABASE closed ALLOW_CONNECTIONS false", "CREATE DATABASE small CONNECTION LIMIT 0",
		"CREATE DATABASE private", "REVOKE CONNECT ON DATABASE private FROM PUBLIC",
	} {
		testserver.Query(t, server, sql)
	}
	for _, tt := range []struct{ user, database, code, hint string }{
		{"nobody", "postgres", "28000", "CREATE ROLE nobody LOGIN or, if there is that role, ALTER ROLE nobody LOGIN"},
		{"mute", "postgres", "28000", "CREATE ROLE mute LOGIN or, if there is that role, ALTER ROLE mute LOGIN"},
		{"Full", "postgres", "53300", `ALTER ROLE "Full" CONNECTION LIMIT sets how many it may have`},
		{"guest", "small", "53300", "ALTER DATABASE small CONNECTION LIMIT sets how many it may have"},
		{"guest", "closed", "55000", "ALTER DATABASE closed ALLOW_CONNECTIONS true"},
		{"guest", "private", "42501", "GRANT CONNECT ON DATABASE private TO guest"},
	} {
		cfg, err := pgconn.ParseConfig(server.DSN(tt.database))
		if err != nil {
			t.Fatal(err)
		}
		cfg.User = tt.user
		_, err = pgconn.ConnectConfig(t.Context(), cfg)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) {
			t.Fatalf("%s in %s: %v", tt.user, tt.database, err)
		}
		refused.Message = "nein"
		if text, _, hint := describePgError(refused, cfg); text != "nein ("+tt.code+")" || hint != tt.hint {
			t.Errorf("%s in %s: %s, hint %q", tt.user, tt.database, text, hint)
		}
	}
}

// TestHintsWhenRevoked: if a role may not use what every role may by default, the hint says so,
// also after the login. What is the ledger's, or a role's own right, has other hints.
func TestHintsWhenRevoked(t *testing.T) {
	t.Parallel()
	const again = "by default every role may use that: grant EXECUTE on the function, or SELECT on the view, to this role again"
	for _, tt := range []struct{ message, routine, hint string }{
		{"permission denied for function pg_notify", "aclcheck_error", again},
		{"keine Berechtigung für Sicht pg_locks", "aclcheck_error", again},
		{"permission denied for schema pglead", "aclcheck_error", ""},
		{"must be a member of the role whose process is being terminated or member of pg_signal_backend", "pg_terminate_backend", ""},
	} {
		var e *Error
		err := Rejected(&pgconn.PgError{Code: "42501", Message: tt.message, Routine: tt.routine}, "lock 7")
		if !errors.As(err, &e) || e.Kind != Denied || e.Hint != tt.hint {
			t.Errorf("%s: %v, hint %q", tt.message, err, e.Hint)
		}
	}
}

// TestServersLimits: where the server is at one of its limits, a statement may succeed later.
func TestServersLimits(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"too many notifications in the NOTIFY queue":                                                       "a session that listens and stays in a transaction keeps the queue full: end the oldest one in pg_stat_activity",
		"database is not accepting commands to avoid wraparound data loss in database \"app\"":             "Stop the postmaster.",
		"database is not accepting commands that assign new transaction IDs to avoid wraparound data loss": "Stop the postmaster.",
	} {
		var e *Error
		err := Rejected(&pgconn.PgError{Code: "54000", Message: message, Hint: "Stop the postmaster."}, "lock 7")
		if !errors.As(err, &e) || e.Kind != Unreachable || e.Hint != want || err.Error() != "lock 7: "+message+" (54000)" || !Passing(err) {
			t.Errorf("%s: %v, hint %q", message, err, e.Hint)
		}
	}
	if err := Rejected(&pgconn.PgError{Code: "54001", Message: "stack depth limit exceeded"}, "lock 7"); Passing(err) {
		t.Error("a statement that is too deep passes")
	}
}

// TestAttemptHints: the hint says what may be wrong if nobody answers as a server does.
func TestAttemptHints(t *testing.T) {
	t.Parallel()
	connect := func(errno syscall.Errno) error {
		return &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errno)}
	}
	unknown := func(name string) error { return &net.DNSError{Name: name, IsNotFound: true} }
	for _, tt := range []struct {
		err              error
		host, text, hint string
	}{
		{connect(syscall.EACCES), "/run/pg", "permission denied", "this user may not enter the socket's directory, or not use the socket (unix_socket_permissions); host=localhost goes round it"},
		{connect(syscall.EACCES), "db", "permission denied", ""},
		{io.ErrUnexpectedEOF, "db", "the server closed the connection during the login", "is it PostgreSQL's port, and, behind a proxy, is a server up?"},
		{unknown("127.0.0.1:5599"), "127.0.0.1:5599", `no such host "127.0.0.1:5599"`, "the port is a parameter of its own: host=127.0.0.1 port=5599"},
		{unknown("[::1]:5599"), "[::1]:5599", `no such host "[::1]:5599"`, "the port is a parameter of its own: host=::1 port=5599"},
		{unknown("db"), "db", `no such host "db"`, "--dsn, PGLEAD_DSN, DATABASE_URL or PGHOST say where the database is"},
	} {
		text, kind, hint := describeAttempt(tt.err, &pgconn.Config{Host: tt.host})
		if text != tt.text || kind != Unreachable || hint != tt.hint {
			t.Errorf("%v: %q, kind %d, hint %q", tt.err, text, kind, hint)
		}
	}
	text, kind, hint := describeAttempt(errors.New("server protocol version too low: %!w(<nil>)"), &pgconn.Config{Host: "db"})
	if text != "the server's protocol is older than min_protocol_version" || kind != Unsafe || hint != "PostgreSQL has 3.2 from version 18 on" {
		t.Errorf("an old protocol: %q, kind %d, hint %q", text, kind, hint)
	}
}

// TestPassing: what may go away by itself, so that a run that waits tries again.
func TestPassing(t *testing.T) {
	t.Parallel()
	for kind, want := range map[Kind]bool{BadDSN: false, Unreachable: true, Denied: false, Unsafe: false, Standby: true, NoStandbys: true} {
		if got := Passing(Errorf(kind, "", "text")); got != want {
			t.Errorf("kind %d: %v", kind, got)
		}
	}
	if !Passing(&LostError{Cause: ErrSilent}) || Passing(errors.New("text")) {
		t.Error("a loss does not pass, or any error does")
	}
	for code, want := range map[string]bool{
		"08006": true, "53100": true, "57P01": true, "57P03": true, "57014": true, "54000": true, "54001": false, "42501": false, "28P01": false,
	} {
		refused := &pgconn.PgError{Code: code, Message: "no"}
		if got := Passing(Rejected(refused, "lock 7")); got != want {
			t.Errorf("%s: %v", code, got)
		}
		if AnsweredError(refused) == nil || AnsweredError(&LostError{Cause: serverError{refused}}) != nil {
			t.Errorf("%s: only that of a session that goes on counts as an answer", code)
		}
	}
}
