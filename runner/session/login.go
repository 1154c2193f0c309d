package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglead/pglead/runner/leasetime"
)

// connect dials the hosts of a configuration, and logs in to the first that answers and passes the
// configuration's ValidateConnect. way notes where that is, and trying is called as Config.Trying.
// Until allow is called, the server may send no more than mostLogin bytes.
func connect(ctx context.Context, database *pgconn.Config, way *route, trying func()) (*pgconn.PgConn, error) {
	var in *limitedReader // of the latest attempt, which is the one that succeeds
	database.MaxProtocolMessageBodyLen = longestMessage
	database.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		in = &limitedReader{r, mostLogin, mostLogin}
		return pgproto3.NewFrontend(in, w)
	}
	var attempts plainAttempts
	attempts.install(database)
	defer attempts.end()
	way.record(database, trying) // on top: an attempt may have no connection of its own
	pg, err := pgconn.ConnectConfig(ctx, database)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, connectError(Target(database), database, err)
	}
	pg.CustomData()[limitName] = in
	return pg, nil
}

// connectToHold is connect for a connection that is to hold a lock, so the kernel watches it, too.
// check is called for each server that lets us in.
func connectToHold(ctx context.Context, cfg Config, way *route, check pgconn.ValidateConnectFunc) (*pgconn.PgConn, error) {
	database := cfg.Database.Copy()
	database.ConnectTimeout = cfg.ConnectTimeout
	database.DialFunc = (&net.Dialer{
		// The kernel's probes find a dead peer while no request is under way. The
		// heartbeat finds silence after a request.
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: cfg.Lease / 3, Interval: cfg.Lease / 6, Count: keepaliveCount,
		},
		ControlContext: userTimeout(cfg.Lease),
	}).DialContext
	database.ValidateConnect = check
	return connect(ctx, database, way, cfg.Trying)
}

// mostKeepaliveIdle is Linux's longest time before the first keep-alive (MAX_TCP_KEEPIDLE). A server
// there does not obey a longer one.
const mostKeepaliveIdle = 32767 * time.Second

// keepaliveCount is the number of our probes in a lease: the first comes after a third of the lease,
// each further one a sixth later. On Linux TCP_USER_TIMEOUT takes precedence over the count
// (tcp(7)). macOS and FreeBSD don't have TCP_USER_TIMEOUT: there, fewer probes would end the
// session before the lease is over, and --lost-grace relies on nine tenths of the lease.
const keepaliveCount = 4

// loginAnswers are the answers to the login checks of a connection that passed them.
type loginAnswers struct {
	age      time.Duration // of the server's lock table
	identity string        // of the server: see ServerIdentitySQL
	first    *string       // to Config.FirstTry, or nil if there was none
	login    string        // to Config.LoginQuestion
}

// checkLogin asks, in one statement, what kind of server this is. The same statement makes the
// settings and answers cfg.FirstTry and cfg.LoginQuestion, but only if the server is fit and
// no pooler stands in between: settings made through a pooler would stay on a connection that
// others use. The process number shows a pooler: behind one, that of the login is not the
// backend's.
//
// With Transaction a pooler is expected: the statement makes no settings that outlive it, but asks
// both questions all the same.
func checkLogin(ctx context.Context, pg *pgconn.PgConn, cfg Config) (loginAnswers, error) {
	major := majorVersion(pg)
	if major < OldestMajor {
		return loginAnswers{}, tooOld(ctx, pg)
	}
	asked := cfg.FirstTry != ""
	sql, formats := loginQuery(pg, cfg, major)
	result := askAtOnce(ctx, pg, sql, formats)
	err := result.Err
	var pgErr *pgconn.PgError
	switch {
	case !errors.As(err, &pgErr):
	case pgErr.Code == InsufficientPrivilege && asked: // the try after the login will get the same error, and name the lock
		cfg.FirstTry = ""
		return checkLogin(ctx, pg, cfg)
	case pgErr.Code == InsufficientPrivilege:
		return loginAnswers{}, rejection(pgErr)
	case strings.HasPrefix(pgErr.Code, classSyntaxOrAccess):
		return loginAnswers{}, unfit(needsPostgreSQL, "the server does not understand PostgreSQL's own functions: %s", ServerSays(pgErr))
	}
	if err != nil {
		return loginAnswers{}, err
	}
	if len(result.Rows) != 1 || len(result.Rows[0]) != len(formats) {
		return loginAnswers{}, NotPostgreSQL()
	}
	row := result.Rows[0]
	switch {
	case !cfg.Transaction && string(row[0]) != strconv.FormatUint(uint64(pg.PID()), 10):
		return loginAnswers{}, PooledError(pg.PID(), string(row[0]))
	case string(row[1]) == "t":
		return loginAnswers{}, StandbyError()
	}
	answers := loginAnswers{}
	if cfg.LoginQuestion != "" {
		answers.login = string(row[len(row)-1])
		row = row[:len(row)-1]
	}
	if asked {
		answers.first = new(string(row[firstColumn]))
	}
	answers.age, answers.identity, err = readServerAge(ctx, pg, row[ageColumns:])
	return answers, err
}

// readCommitted is put before queries that must not wait for other sessions' transactions. A
// role's defaults may make its transactions serializable, read only and deferrable, as PostgreSQL
// recommends for reports. Then each of them waits while a serializable one that may write is under
// way.
const readCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

// OwnNames is put before other queries, in the same message. By it they find only PostgreSQL's own
// operators and types. The server looks up the names of a statement before it evaluates any part of
// it, so a statement that makes this setting itself would come too late.
const OwnNames = "SET LOCAL search_path = " + safeSearchPath

// A pooler's connection may have any of the role's defaults. So one of these is put before a query,
// in the same message. A standby refuses ToWrite.
const (
	toRead  = readCommitted + pooledSettings
	ToWrite = readCommitted + " READ WRITE" + pooledSettings

	pooledSettings = "; " + OwnNames + "; SET LOCAL statement_timeout = 0; "
)

// settingsFor are toRead or ToWrite, unless the session has these settings.
func (s *Session) settingsFor(sql string, writes bool) string {
	switch {
	case !s.cfg.Transaction || s.holding.Load() || !isQuery(sql):
		return ""
	case writes:
		return ToWrite
	}
	return toRead
}

// askAtOnce asks in a transaction that doesn't wait (readCommitted). For nearly all roles that
// takes no further round trip: the server says at the login whether a transaction of this one may
// write by default, and then it doesn't wait.
func askAtOnce(ctx context.Context, pg *pgconn.PgConn, sql string, formats []int16) *pgconn.Result {
	if pg.ParameterStatus("default_transaction_read_only") != "on" {
		return pg.ExecParams(ctx, sql, nil, nil, nil, formats).Read()
	}
	if _, err := pg.Exec(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED").ReadAll(); err != nil {
		return &pgconn.Result{Err: err}
	}
	result := pg.ExecParams(ctx, sql, nil, nil, nil, formats).Read()
	if _, err := pg.Exec(ctx, "COMMIT").ReadAll(); result.Err == nil { // also ends a transaction that has failed
		result.Err = err
	}
	return result
}

// The columns of loginQuery, from the fourth on.
const (
	firstColumn = 3 // the answer to Config.FirstTry
	ageColumns  = 4 // ageInstantsSQL
)

// loginQuery is checkLogin's statement, and the formats of its columns. These are the backend's
// process number, whether the server is a standby, the settings, the answer to FirstTry,
// ageInstantsSQL, and the answer to LoginQuestion if that is asked.
//
// The role's own search_path is in force, so each function and operator is named with its schema.
func loginQuery(pg *pgconn.PgConn, cfg Config, major int) (sql string, formats []int16) {
	settings, first := setSQL(true, [][2]string{{"search_path", safeSearchPath}}), "NULL" // for LoginQuestion
	if cfg.FirstTry != "" {
		first = cfg.FirstTry
	}
	fit := "NOT pg_catalog.pg_is_in_recovery()"
	if !cfg.Transaction {
		settings = cfg.sessionSettingsSQL(major) + andSQL + asIsSQL(pg, false)
		fit += fmt.Sprintf(" AND pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) %d", pg.PID())
	}
	sql = fmt.Sprintf(`SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),
	CASE WHEN %[1]s THEN %[2]s END, CASE WHEN %[1]s THEN %[3]s END, %[4]s`, fit, settings, first, ageInstantsSQL)
	// The instants in ageInstantsSQL are in binary: their text would depend on the server's
	// settings, and arithmetic on the server would cost more than all the rest.
	const inText, inBinary = 0, 1 // of the protocol: libpq's resultFormat
	formats = append(make([]int16, ageColumns), inText, inBinary, inBinary, inBinary)
	if cfg.LoginQuestion != "" {
		sql, formats = sql+fmt.Sprintf(", CASE WHEN %s THEN %s END", fit, cfg.LoginQuestion), append(formats, inText)
	}
	return sql, formats
}

// PooledError is the error if the server's process number for the session is not the one that the
// login gave.
func PooledError(ours uint32, servers string) *Error {
	return unfit("connect to PostgreSQL itself, or use --transaction: a pooler gives the connection, and the lock on it, to others",
		"there is a connection pooler in between (it calls the session %d, the server calls it %s)", ours, servers)
}

const needsPostgreSQL = "a server of PostgreSQL 14 or newer is needed"

// tooOld is TooOldError with the version as the server itself describes it: the server may not be
// PostgreSQL.
func tooOld(ctx context.Context, pg *pgconn.PgConn) error {
	version := pg.ParameterStatus("server_version")
	results, _ := pg.Exec(ctx, "SELECT pg_catalog.version()").ReadAll()
	if row, err := rowsOf(results).Only(1); err == nil {
		version = row[0]
	}
	return TooOldError(version)
}

// TooOldError is the error for a server older than OldestMajor.
func TooOldError(version string) *Error {
	return unfit(needsPostgreSQL, "the server is too old: %s", version)
}

// majorVersion is the major version that the server reports at the login, as libpq's
// PQserverVersion has it. A server that reports none counts as new enough.
func majorVersion(pg *pgconn.PgConn) int {
	major := OldestMajor
	_, _ = fmt.Sscanf(pg.ParameterStatus("server_version"), "%d", &major) // such as 16beta1, or 15.4 (Debian 15.4-1)
	return major
}

// StandbyError is the error for a server that is not the primary.
func StandbyError() *Error {
	return &Error{
		Kind: Standby, Hint: "connect to the primary, or give all hosts (host=a,b,c): the primary among them is found",
		err: errors.New("the server is a standby: its locks don't exclude anyone on the primary"),
	}
}

// OldestMajor is the first version with idle_session_timeout and
// client_connection_check_interval.
const OldestMajor = 14

// safeSearchPath has no schema in which others can create anything. In another schema somebody
// could create an operator whose types fit better than those of PostgreSQL's own, or the same if
// that schema comes before pg_catalog: it would be called instead, with the rights of this role.
// https://www.postgresql.org/docs/current/typeconv-oper.html
const safeSearchPath = "pg_catalog, pg_temp"

// settings are the settings that a session needs, directly or through a pooler.
func (cfg Config) settings() [][2]string {
	return [][2]string{
		{"search_path", safeSearchPath},
		{"application_name", cfg.ApplicationName},
		{"client_min_messages", "warning"},
		{"datestyle", "ISO"}, // the server reads again what it has written, in any time zone
		{"statement_timeout", "0"},
	}
}

// sessionSettingsSQL is an SQL expression that makes the settings of a session without a
// pooler.
func (cfg Config) sessionSettingsSQL(major int) string {
	settings := cfg.settings()
	if major >= 17 {
		settings = append(settings, [2]string{transactionTimeout, "0"})
	}
	return setSQL(false, append(settings,
		[2]string{"default_transaction_isolation", "read committed"}, // a start needs a new snapshot, and no heartbeat may wait: see readCommitted
		// No query waits for another session's lock for longer than until the next heartbeat: an error is
		// an answer, too. Where tables are made and dropped all the time, a query has to read catalogs
		// again, which VACUUM FULL or REINDEX of one may keep locked for minutes. And a commit with a
		// NOTIFY waits for all other such commits on the server, of which one may wait for a standby.
		[2]string{"lock_timeout", milliseconds(leasetime.BeatEvery(cfg.Lease))},
		[2]string{"idle_in_transaction_session_timeout", "0"},
		[2]string{"idle_session_timeout", milliseconds(cfg.Lease)},
		// While a query of ours runs, only these tell the server that we are gone. Those of TCP
		// have no effect on a unix socket. An idle session ends by itself.
		[2]string{"tcp_keepalives_idle", seconds(min(leasetime.ProbeAfter(cfg.Lease), mostKeepaliveIdle))},
		[2]string{"tcp_keepalives_interval", seconds(cfg.Lease / 10)},
		[2]string{"tcp_keepalives_count", strconv.Itoa(keepaliveCount)},
		[2]string{"tcp_user_timeout", milliseconds(cfg.Lease)},
		[2]string{"client_connection_check_interval", milliseconds(leasetime.BeatEvery(cfg.Lease))}))
}

// setSQL is an SQL expression that makes settings, for the session or only for
// the transaction.
func setSQL(local bool, settings [][2]string) string {
	calls := make([]string, len(settings))
	for i, s := range settings {
		calls[i] = fmt.Sprintf("pg_catalog.set_config('%s', '%s', %t)", s[0], s[1], local)
	}
	return strings.Join(calls, andSQL)
}

// andSQL is between two calls that make settings. It names the operator's schema, since the role's
// own search_path may be in force.
const andSQL = " OPERATOR(pg_catalog.||) "

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// seconds rounds up, since 0 would stand for the server's own default.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
