package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Open connects and makes sure that the server can keep the promise: a
// primary of PostgreSQL 14 or newer with nothing in between that hands its
// connections to others. Of several hosts the first that will do is taken.
// With Quorum a grant needs a second session, so both are opened here or neither: else
// a server could be full of those who have a place in line, and lack room for the second
// session of the first of them. With Transaction alone there is no line: whoever finds
// the lock free, or waits, asks for the Second then. Errors are of type *Error, or ctx's.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	if !cfg.Quorum {
		return openOne(ctx, cfg)
	}
	cfg.AtLogin = ""
	s, err := openOne(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err = s.Second(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func openOne(ctx context.Context, cfg Config) (*Session, error) {
	// In this hook a refusal makes pgconn go on to the next host, so a DSN
	// with all nodes of a cluster finds the primary, target_session_attrs or
	// not: on a standby a lock is granted and means nothing.
	var ready prepared
	var way route
	pg, err := connectBy(ctx, cfg, &way, func(ctx context.Context, pg *pgconn.PgConn) (err error) {
		ready, err = prepare(ctx, pg, cfg)
		if err != nil { // pgconn only closes the socket
			pg.Frontend().Send(&pgproto3.Terminate{})
			_ = pg.Frontend().Flush()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s := sessionOn(pg, cfg)
	s.began, s.first, s.probed = s.opened-ready.age, ready.first, ready.probed
	s.cfg.Database = way.pin(cfg.Database)
	return s, nil
}

// openUnasked logs in, and leaves all questions to what will be asked there.
func openUnasked(ctx context.Context, cfg Config) (*Session, error) {
	pg, err := connect(ctx, cfg, nil)
	if err != nil {
		return nil, err
	}
	return sessionOn(pg, cfg), nil
}

func sessionOn(pg *pgconn.PgConn, cfg Config) *Session {
	allowAll(pg)
	s := newSession(pg.Conn(), pg.Frontend(), pg.PID(), cfg.Lease, bootClock())
	s.cancel = pg.CancelRequest
	s.cfg = cfg
	s.SetComment(cfg.Comment)
	return s
}

// TakeLoginAnswer is the value of Config.AtLogin, once.
func (s *Session) TakeLoginAnswer() (value string, known bool) {
	first := s.first
	if first == nil { // of a session that is shared, which is not written to
		return "", false
	}
	s.first = nil
	return *first, true
}

// Probed is the value of Config.Probe, or empty if that is NULL.
func (s *Session) Probed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.probed
}

// Probe evaluates Config.Probe again.
func (s *Session) Probe(ctx context.Context) error {
	row, err := s.Row(ctx, 1, "SELECT "+s.cfg.Probe)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probed = row[0]
	return nil
}

// connect logs in to the first host that fits.
func connect(ctx context.Context, cfg Config, fits pgconn.ValidateConnectFunc) (*pgconn.PgConn, error) {
	return connectBy(ctx, cfg, &route{}, fits)
}

func connectBy(ctx context.Context, cfg Config, way *route, fits pgconn.ValidateConnectFunc) (*pgconn.PgConn, error) {
	database := cfg.Database.Copy()
	database.ConnectTimeout = cfg.ConnectTimeout
	database.DialFunc = (&net.Dialer{
		// The kernel's probes find a dead peer while no request is under way;
		// silence after a request is the heartbeat's business.
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: cfg.Lease / 3, Interval: cfg.Lease / 6, Count: keepaliveCount,
		},
		ControlContext: userTimeout(cfg.Lease),
	}).DialContext
	database.ValidateConnect = fits
	way.over(database)

	pg, err := login(ctx, database)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, connectError(Target(cfg.Database), database, err)
	}
	return pg, nil
}

// keepaliveCount is how many probes, each a sixth of the lease after the one before
// and the first after a third, stay unanswered in a lease. Where there is no
// TCP_USER_TIMEOUT, which comes before the count (tcp(7)), on macOS and FreeBSD, less
// would end the session before the lease is over: --lost-grace counts on nine tenths.
const keepaliveCount = 4

// sessionSettings is an SQL expression that makes the settings of a session which is
// this process's alone.
func (cfg Config) sessionSettings(major int) string {
	settings := cfg.settings()
	if major >= 17 {
		settings = append(settings, [2]string{transactionTimeout, "0"})
	}
	return set(false, append(settings,
		[2]string{"idle_in_transaction_session_timeout", "0"},
		[2]string{"idle_session_timeout", milliseconds(cfg.Lease)},
		// While a request of ours waits for a lock only these tell the server
		// that we are gone. They are without effect on a unix socket.
		[2]string{"tcp_keepalives_idle", seconds(cfg.Lease / 3)},
		[2]string{"tcp_keepalives_interval", seconds(cfg.Lease / 6)},
		[2]string{"tcp_keepalives_count", strconv.Itoa(keepaliveCount)},
		[2]string{"tcp_user_timeout", milliseconds(cfg.Lease)},
		[2]string{"client_connection_check_interval", milliseconds(cfg.Lease / heartbeatsPerLease)}))
}

// prepare asks, in one statement, what kind of server this is, and makes the
// settings only if nothing stands in between: set through a pooler they would
// stay on a server connection that others use. A pooler gives itself away by
// a process number that is not the backend's.
//
// In the same way it evaluates cfg.AtLogin and cfg.Probe, with a transaction through a
// pooler, too.
func prepare(ctx context.Context, pg *pgconn.PgConn, cfg Config) (prepared, error) {
	major := majorVersion(pg)
	if major < OldestMajor {
		return prepared{}, tooOld(ctx, pg)
	}
	fit, first := "''", "NULL"
	asked := cfg.AtLogin != ""
	if asked {
		first = "(" + cfg.AtLogin + ")::text"
	}
	condition := "NOT pg_catalog.pg_is_in_recovery()"
	if !cfg.Transaction {
		fit = cfg.sessionSettings(major)
		condition += fmt.Sprintf(" AND pg_catalog.pg_backend_pid() = %d", pg.PID())
	}
	sql := fmt.Sprintf(`SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),
	CASE WHEN %[1]s THEN %[2]s END, CASE WHEN %[1]s THEN %[3]s END, %[4]s`, condition, fit, first, serverAge)

	const facts = 4
	formats := append(make([]int16, facts), ageFormats()...)
	if cfg.Probe != "" {
		sql, formats = sql+fmt.Sprintf(", CASE WHEN %s THEN %s END", condition, cfg.Probe), append(formats, 0)
	}
	result := pg.ExecParams(ctx, sql, nil, nil, nil, formats).Read()
	err := result.Err
	var pgErr *pgconn.PgError
	switch {
	case !errors.As(err, &pgErr):
	case pgErr.Code == "42501" && asked: // it will be asked again, and refused by its own name
		cfg.AtLogin = ""
		return prepare(ctx, pg, cfg)
	case strings.HasPrefix(pgErr.Code, "42"):
		return prepared{}, unsafe(needsPostgreSQL, "the server does not understand PostgreSQL's own functions: %s", ServerSays(pgErr))
	}
	if err != nil {
		return prepared{}, err
	}
	if len(result.Rows) != 1 || len(result.Rows[0]) != len(formats) {
		return prepared{}, ErrNotPostgreSQL()
	}
	row := result.Rows[0]
	switch {
	case !cfg.Transaction && string(row[0]) != strconv.FormatUint(uint64(pg.PID()), 10):
		return prepared{}, ErrPooled(pg.PID(), string(row[0]))
	case string(row[1]) == "t":
		return prepared{}, ErrStandby()
	}
	ready := prepared{}
	if cfg.Probe != "" {
		ready.probed = string(row[len(row)-1])
		row = row[:len(row)-1]
	}
	age, err := ageOf(ctx, pg, row[facts:])
	ready.age = age
	if asked {
		value := string(row[facts-1])
		ready.first = &value
	}
	return ready, err
}

// prepared is what is known of a connection that is fit to hold locks: for how
// long the server has had its present memory of locks, and the values of
// Config.AtLogin and Config.Probe.
type prepared struct {
	age    time.Duration
	first  *string
	probed string
}

// ErrPooled says that the server has another number for the session than the one
// that came with the login.
func ErrPooled(ours uint32, servers string) *Error {
	return unsafe("connect to PostgreSQL itself, or use --transaction: a pooler gives the connection, and the lock on it, to others",
		"there is a connection pooler in between (it calls the session %d, the server calls it %s)", ours, servers)
}

const needsPostgreSQL = "a server of PostgreSQL 14 or newer is needed"

// tooOld is an ErrTooOld that names the product, which may be another than
// PostgreSQL.
func tooOld(ctx context.Context, pg *pgconn.PgConn) error {
	version := pg.ParameterStatus("server_version")
	results, err := pg.Exec(ctx, "SELECT version()").ReadAll()
	if err == nil && len(results) == 1 && len(results[0].Rows) == 1 && len(results[0].Rows[0]) == 1 {
		version = string(results[0].Rows[0][0])
	}
	return ErrTooOld(version)
}

// ErrTooOld is for a server before OldestMajor.
func ErrTooOld(version string) *Error {
	return unsafe(needsPostgreSQL, "the server is too old: %s", version)
}

// majorVersion is the server's, as it says at the login (libpq's PQserverVersion
// goes by that too). Whoever doesn't say is taken for one that is new enough.
func majorVersion(pg *pgconn.PgConn) int {
	version := pg.ParameterStatus("server_version")
	digits := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	major, err := strconv.Atoi(version[:max(0, digits)])
	if digits < 0 {
		major, err = strconv.Atoi(version) // "17"
	}
	if err != nil {
		return OldestMajor
	}
	return major
}

// ErrStandby is for a server that is not the primary.
func ErrStandby() *Error {
	return &Error{
		Kind: Standby, Hint: "connect to the primary, or give all hosts (host=a,b,c): the primary among them is found",
		err: errors.New("the server is a standby: its locks don't exclude anyone on the primary"),
	}
}

// settings are what the session needs in either mode.
func (cfg Config) settings() [][2]string {
	return [][2]string{
		{"application_name", cfg.ApplicationName},
		{"client_min_messages", "warning"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
	}
}

// set is an SQL expression that makes settings, for the session or only for
// the transaction.
func set(local bool, settings [][2]string) string {
	calls := make([]string, len(settings))
	for i, s := range settings {
		calls[i] = fmt.Sprintf("pg_catalog.set_config('%s', '%s', %t)", s[0], s[1], local)
	}
	return strings.Join(calls, " || ")
}

// Begin are the queries that begin the transaction which holds the lock. Read
// committed is the level at which no snapshot, which would hold back vacuum,
// is kept between two heartbeats.
func (s *Session) Begin() []string { return s.cfg.Begin() }

// Begin are those of a session of this configuration.
func (cfg Config) Begin() []string {
	return []string{
		"BEGIN ISOLATION LEVEL READ COMMITTED",
		"SELECT " + set(true, append(cfg.settings(), [2]string{"idle_in_transaction_session_timeout", milliseconds(cfg.Lease)})) +
			" || CASE WHEN pg_catalog.current_setting('" + transactionTimeout + "', true) IS NULL THEN '' ELSE pg_catalog.set_config('" + transactionTimeout + "', '0', true) END",
	}
}

// transactionTimeout would end the transaction that holds a lock, and a wait in
// the server's queue. PostgreSQL has it from 17 on. What version a pooler names at
// the login need not be the server's.
const transactionTimeout = "transaction_timeout"

// OldestMajor is the first with idle_session_timeout and
// client_connection_check_interval.
const OldestMajor = 14

func unsafe(hint, format string, args ...any) *Error {
	return &Error{Kind: Unsafe, Hint: hint, err: fmt.Errorf(format, args...)}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// seconds rounds up: 0 would stand for the server's own default.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
