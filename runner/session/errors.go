package session

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglead/pglead/runner/visible"
)

// Kind is the kind of an error. It says what a caller can do about the error.
type Kind int

// The kinds, and what each says.
const (
	BadDSN      Kind = iota + 1 // the connection string is wrong; nothing was tried
	Unreachable                 // no server with room for us answered; trying again later may help
	Denied                      // the server rejected the login, or a statement about the database or the lock
	Unsafe                      // the server can't keep the promise, and never will
	Standby                     // the server is not the primary, but may become it
	NoStandbys                  // the primary waits for no standbys, which a quorum needs; during a failover that passes
)

// Error is an error of this package. Its text never contains a password.
type Error struct {
	Kind Kind
	Hint string // what the user can do about it, or empty
	// Full says that a server is there, and has no room now.
	Full bool
	// LoginRejected says that a server answered, and rejected the login.
	LoginRejected bool
	err           error

	at *pgconn.Config // the host that gave the error, if another host may not give it
}

func (e *Error) Error() string { return e.err.Error() }
func (e *Error) Unwrap() error { return e.err }

// Errorf makes an error of this kind, with a hint that says what the user can do about it.
func Errorf(kind Kind, hint, format string, args ...any) *Error {
	return &Error{Kind: kind, Hint: hint, err: fmt.Errorf(format, args...)}
}

func unfit(hint, format string, args ...any) *Error { return Errorf(Unsafe, hint, format, args...) }

// NotPostgreSQL is for answers that PostgreSQL doesn't give.
func NotPostgreSQL() *Error {
	return unfit("", "the server does not answer as PostgreSQL does")
}

// FullError is the error if a server has no room.
func FullError(text string) *Error {
	return &Error{Kind: Unreachable, Full: true, err: errors.New(text)}
}

// AnsweredError is the server's error if the session has survived it, or nil. The error that ended
// a session is wrapped in a LostError, and doesn't count.
func AnsweredError(err error) (pgErr *pgconn.PgError) {
	if errors.As(err, new(*LostError)) || !errors.As(err, &pgErr) {
		return nil
	}
	return pgErr
}

// Rejected turns a server's error into one that names what the server rejected.
func Rejected(err error, what string) error {
	pgErr := AnsweredError(err)
	if pgErr == nil {
		return err
	}
	e := rejection(pgErr)
	e.err = fmt.Errorf("%s: %w", what, e.err)
	return e
}

// rejection is the error of a statement that the server has rejected.
func rejection(pgErr *pgconn.PgError) *Error {
	kind := Denied
	if mayPass(pgErr) { // such as a pooler without a free connection
		kind = Unreachable
	}
	hint := ""
	switch {
	case pgErr.Code == DiskFull:
		hint = "free space on the server"
	case QueueFull(pgErr):
		hint = "a session that listens and stays in a transaction keeps the queue full: end the oldest one in pg_stat_activity"
	case pgErr.Code == LockNotAvailable:
		hint = "another session is in the way: it locks a system catalog or, if this was to announce something, its commit holds up all NOTIFYs, " +
			"for instance since a standby doesn't answer (wait_event SyncRep in pg_stat_activity)"
	case pgErr.Code == programLimitExceeded, pgErr.Code == OutOfMemory:
		hint = visible.Text(pgErr.Hint)
	case revoked(pgErr):
		hint = "by default every role may use that: grant EXECUTE on the function, or SELECT on the view, to this role again"
	}
	return &Error{Kind: kind, Hint: hint, err: serverError{pgErr}}
}

// revoked says whether the server has denied one of its own functions or views. pglead uses only
// those that by default every role may use.
func revoked(e *pgconn.PgError) bool {
	return e.Code == InsufficientPrivilege && e.Routine == "aclcheck_error" &&
		(strings.Contains(e.Message, "pg_") || strings.Contains(e.Message, "set_config") || strings.Contains(e.Message, "query_to_xml"))
}

type serverError struct{ pg *pgconn.PgError }

func (e serverError) Error() string { return ServerSays(e.pg) }
func (e serverError) Unwrap() error { return e.pg }

// Passing says whether the obstacle may go away by itself, so that a run that waits
// should try again.
func Passing(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind == Unreachable || e.Kind == Standby || e.Kind == NoStandbys
	}
	return errors.As(err, new(*LostError))
}

// connectError makes one line of the errors that pgconn returns for its attempts. For each address
// there is one attempt, and with sslmode=prefer there are two.
func connectError(target string, cfg *pgconn.Config, err error) error {
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		err = connect.Unwrap()
	}
	attempts := hostErrors(err)
	e := &Error{}
	var causes []string
	for i, a := range attempts {
		// With sslmode=prefer the next attempt is without TLS, and the error of that one counts.
		if offersNoTLS(a.cause) && i+1 < len(attempts) && attempts[i+1].host == a.host {
			continue
		}
		e.Full = e.Full || full(a.cause)
		e.LoginRejected = e.LoginRejected || errors.As(a.cause, new(*pgconn.PgError))
		text, kind, hint := describeAttempt(a.cause, cfg)
		if len(configHosts(cfg)) > 1 && a.host != "" {
			text = a.host + ": " + text
		}
		if slices.Contains(causes, text) { // it may have had no time left to come as far as the first
			continue
		}
		causes = append(causes, text)
		// Of several obstacles one that may pass decides the kind, since it may hide the server
		// that matters. But a rejected login is final: pgconn tries no other host after it.
		if e.Kind == 0 || kind == Denied || kind == Unreachable && e.Kind != Denied {
			e.Kind, e.Hint = kind, hint
		}
	}
	e.err = fmt.Errorf("connect to %s: %s", visible.Text(target), visible.Text(strings.Join(causes, "; ")))
	return e
}

// full says whether a server has no connection left, or its socket's queue is full
// (EAGAIN of unix(7)).
func full(err error) bool {
	return HasCode(err, tooManyConnections) || errors.Is(err, syscall.EAGAIN)
}

// hostError is the reason why an attempt to connect to a host failed.
type hostError struct {
	host  string
	cause error
}

// hostErrors are the leaves of pgconn's error tree. pgconn joins the attempts, and only the text of
// each attempt names its host.
func hostErrors(err error) (list []hostError) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			list = append(list, hostErrors(e)...)
		}
		return list
	}
	host, _, found := strings.Cut(err.Error(), " (")
	if !found || strings.ContainsAny(host, " `") {
		host = ""
	}
	return []hostError{{host: host, cause: err}}
}

func describeAttempt(err error, cfg *pgconn.Config) (text string, kind Kind, hint string) {
	var (
		own       *Error
		pgErr     *pgconn.PgError
		dnsErr    *net.DNSError
		certErr   *tls.CertificateVerificationError
		hostErr   x509.HostnameError
		authErr   x509.UnknownAuthorityError // with sslmode=verify-ca
		badErr    x509.CertificateInvalidError
		recordErr tls.RecordHeaderError
		alert     tls.AlertError
		errno     syscall.Errno
	)
	switch {
	case errors.As(err, &own):
		return own.Error(), own.Kind, own.Hint
	case errors.As(err, &pgErr):
		return describePgError(pgErr, cfg)
	case errors.As(err, &dnsErr):
		if dnsErr.IsNotFound {
			return fmt.Sprintf("no such host %q", dnsErr.Name), Unreachable, noHostHint(dnsErr.Name)
		}
		return fmt.Sprintf("resolve %q: %s", dnsErr.Name, dnsErr.Err), Unreachable, ""
	case errors.As(err, &hostErr), errors.As(err, &certErr), errors.As(err, &authErr), errors.As(err, &badErr):
		return "the server's certificate is not accepted: " + innermost(err).Error(), Unreachable,
			"check sslrootcert, and that the host name is the one in the certificate"
	case errors.As(err, &alert), errors.As(err, &recordErr):
		return "TLS: " + innermost(err).Error(), Unreachable, ""
	case offersNoTLS(err):
		return "the server does not offer TLS, which sslmode asks for", Unreachable,
			"switch ssl on at the server; sslmode=disable gives up encryption"
	case errors.Is(err, context.Canceled):
		return "interrupted", Unreachable, ""
	case errors.Is(err, syscall.EAGAIN): // net.Error calls it a time-out
		return "too many connections wait at the server's socket", Unreachable, ""
	case pgconn.Timeout(err), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		hint = "it accepts connections and says nothing: does it hang, or is there a proxy without a server behind it?"
		if strings.Contains(err.Error(), "dial error") { // pgconn has no type for the step that failed
			hint = "is a firewall in between?"
		}
		return fmt.Sprintf("no answer within %v", cfg.ConnectTimeout.Round(100*time.Millisecond)), Unreachable, hint + " --connect-timeout sets how long each attempt may take"
	case errors.Is(err, syscall.ENOENT):
		return "no server socket there", Unreachable, noServerHint
	case errors.As(err, &errno):
		switch {
		case errno == syscall.ECONNREFUSED:
			hint = noServerHint
		case errno == syscall.EACCES && slices.ContainsFunc(configHosts(cfg), filepath.IsAbs):
			hint = "this user may not enter the socket's directory, or not use the socket (unix_socket_permissions); host=localhost goes round it"
		}
		return errno.Error(), Unreachable, hint
	case strings.Contains(err.Error(), "invalid body length"), strings.Contains(err.Error(), "invalid message length"),
		strings.Contains(err.Error(), "unknown message type"):
		return "what answers there is not PostgreSQL", Unreachable, "check host and port"
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "the server closed the connection during the login", Unreachable, "is it PostgreSQL's port, and, behind a proxy, is a server up?"
	case strings.Contains(err.Error(), "protocol version too low"): // pgconn's own text ends with a directive of its format
		return "the server's protocol is older than min_protocol_version", Unsafe, "PostgreSQL has 3.2 from version 18 on"
	case strings.Contains(err.Error(), "require_auth"), strings.Contains(err.Error(), "channel binding"),
		strings.Contains(err.Error(), "SASL"):
		return innermost(err).Error(), Denied, ""
	}
	return innermost(err).Error(), Unreachable, ""
}

func offersNoTLS(err error) bool {
	return strings.Contains(err.Error(), "server refused TLS connection")
}

const noServerHint = "is PostgreSQL running there? --dsn, PGLEAD_DSN, DATABASE_URL or PGHOST say where it is"

// noHostHint is for a host without an address, whose name may end with a port.
func noHostHint(name string) string {
	if host, port, err := net.SplitHostPort(name); err == nil && host != "" && port != "" && strings.Trim(port, "0123456789") == "" {
		return fmt.Sprintf("the port is a parameter of its own: host=%s port=%s", host, port)
	}
	return "--dsn, PGLEAD_DSN, DATABASE_URL or PGHOST say where the database is"
}

// fullHint says what limits the connections, all of which are taken. (A command that has --wait
// says itself that --wait tries again.)
func fullHint(e *pgconn.PgError, cfg *pgconn.Config) string {
	switch {
	case strings.Contains(e.Message, "for role"), e.Routine == ofRole:
		return "ALTER ROLE " + identifier(cfg.User) + " CONNECTION LIMIT sets how many it may have"
	case strings.Contains(e.Message, "for database"), e.Routine == ofDatabase:
		return "ALTER DATABASE " + databaseOf(cfg) + " CONNECTION LIMIT sets how many it may have"
	}
	return "max_connections is the server's limit, and pg_stat_activity shows who has them"
}

// The server's routines that look whether a role, and a database, take another session. Messages
// may be in the server's language, but these names are not.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/utils/init
const (
	ofRole     = "InitializeSessionUserId"
	ofDatabase = "CheckMyDatabase"
)

// describePgError sorts the errors that a server gives instead of completing a login.
func describePgError(e *pgconn.PgError, cfg *pgconn.Config) (text string, kind Kind, hint string) {
	text = ServerSays(e)
	switch {
	case e.Code == invalidPassword && cfg.Password == "":
		return text, Denied, "no password was given: PGPASSWORD or the password file ~/.pgpass (mode 0600) may hold it"
	case e.Code == invalidPassword:
		return text, Denied, "wrong or expired password, or no such role, or one without a password: only the server's log tells which"
	case e.Code == invalidAuthorizationSpecification && strings.Contains(e.Message, "does not exist"):
		return text, Denied, "CREATE ROLE " + identifier(cfg.User) + " LOGIN; or is another role meant?"
	case e.Code == invalidAuthorizationSpecification && strings.Contains(e.Message, "not permitted to log in"):
		return text, Denied, "ALTER ROLE " + identifier(cfg.User) + " LOGIN"
	case e.Code == invalidAuthorizationSpecification && e.Routine == ofRole: // one of these two, in another language
		return text, Denied, "CREATE ROLE " + identifier(cfg.User) + " LOGIN or, if there is that role, ALTER ROLE " + identifier(cfg.User) + " LOGIN"
	case e.Code == invalidAuthorizationSpecification && cfg.User == "":
		return text, Denied, "this account has no name here: user= or PGUSER names the role"
	case strings.HasPrefix(e.Code, classAuthorization): // a login trigger may give the code, too, and a hint
		return text, Denied, cmp.Or(visible.Text(e.Hint), "pg_hba.conf on the server says who may log in from where")
	case e.Code == invalidCatalogName && strings.TrimSpace(cfg.Database) != cfg.Database: // such as a file's last line end
		return text, Denied, fmt.Sprintf("the connection string has blanks or a line's end in the name: %q", cfg.Database)
	case e.Code == invalidCatalogName:
		return text, Denied, "--dsn, PGLEAD_DSN, DATABASE_URL or PGDATABASE names the database; psql -l lists them"
	case e.Code == InsufficientPrivilege && (strings.Contains(e.Message, "permission denied for database") || e.Routine == ofDatabase):
		return text, Denied, "GRANT CONNECT ON DATABASE " + databaseOf(cfg) + " TO " + identifier(cfg.User)
	case e.Code == objectNotInPrerequisiteState && (strings.Contains(e.Message, "not currently accepting connections") || e.Routine == ofDatabase):
		return text, Denied, "ALTER DATABASE " + databaseOf(cfg) + " ALLOW_CONNECTIONS true"
	case e.Code == tooManyConnections:
		return text, Unreachable, fullHint(e, cfg)
	case e.Code == QueryCanceled:
		return text, Unreachable, "is the statement_timeout of " + identifier(cfg.User) + ", or of the database, too short for the login's question?"
	case mayPass(e):
		return text, Unreachable, visible.Text(e.Hint)
	}
	return text, Denied, visible.Text(e.Hint)
}

// databaseOf is the database's name as SQL writes it; if it is not given, the user's name.
func databaseOf(cfg *pgconn.Config) string { return identifier(cmp.Or(cfg.Database, cfg.User)) }

// identifier is a name as SQL writes it.
func identifier(name string) string {
	if name != "" && strings.Trim(name, lowerCase+"_") == "" {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

// ServerSays is a server's message with its code, as in psql's verbose mode.
func ServerSays(e *pgconn.PgError) string {
	return fmt.Sprintf("%s (%s)", visible.Text(e.Message), visible.Text(e.Code))
}

func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

func networkCause(err error) error {
	var opErr *net.OpError
	var long *pgproto3.ExceededMaxBodyLenErr
	var tooMuch tooMuchError
	switch {
	case errors.As(err, &opErr):
		return fmt.Errorf("the connection broke: %w", innermost(opErr.Err))
	case errors.As(err, &long):
		return tooMuchError{longestMessage}
	case errors.As(err, &tooMuch):
		return tooMuch
	}
	return errors.New("the server closed the connection")
}
