// Package session opens the one connection to PostgreSQL that holds a lock,
// takes the lock on it, and notices when the lock is lost.
//
// A session-level advisory lock belongs to a connection and to nothing else.
// So there is no pool here and no context that might close the connection
// behind its holder's back: after the login the package owns the wire. One
// goroutine keeps a read pending, so that the server's last word is heard
// within milliseconds, and another sends a heartbeat, so that silence is.
package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglead/pglead/runner/boottime"
)

// Config says how a session is opened and kept.
type Config struct {
	Database *pgconn.Config // from ParseDSN

	// Lease is how long the server lets the session live without hearing it
	// (its idle_session_timeout). The session gives itself up earlier: see
	// HolderShare.
	Lease time.Duration

	// LostGrace is what the command gets between SIGTERM and SIGKILL when the
	// lock is lost. Holders announce it.
	LostGrace time.Duration

	// ConnectTimeout bounds each attempt, login and checks included.
	ConnectTimeout time.Duration

	// ApplicationName is what pg_stat_activity shows to everyone.
	ApplicationName string

	// Description is what it shows to some.
	Description Description

	// Transaction makes the session fit for a pooler that gives the connection
	// to others between transactions: locks are taken in a transaction that
	// stays open, and no setting outlives it.
	Transaction bool

	// Claim, if there is one, is tried in the round trip of the login's checks,
	// and the first Try of a hold of it has the answer. Not with Transaction.
	Claim Claim

	// Quorum makes every sign of life depend on the synchronous standbys too:
	// see quorum.go.
	Quorum bool
}

// heartbeatsPerLease leaves room for two lost heartbeats in a holder's share.
const heartbeatsPerLease = 5

// HolderShare is how long a holder may go on after it sent the last request
// that was answered: three fifths of the lease. The server counts from the
// request's arrival, so the holder's share ends first, however long requests
// travel.
func HolderShare(lease time.Duration) time.Duration { return lease * 3 / 5 }

// TakeoverDelay is when the holder's command is dead for certain, counted from
// the same instant: two thirds of the lease. What it has over HolderShare, a
// second for the default lease, is for the kill, on a machine that may be busy.
func TakeoverDelay(lease time.Duration) time.Duration { return lease * 2 / 3 }

// Session is a connection that is fit to hold locks. Several goroutines may use
// it, each with holds of its own; one request is on the wire at a time.
type Session struct {
	conn      net.Conn
	fe        *pgproto3.Frontend
	lease     time.Duration
	clock     clock
	cancel    func(context.Context) error
	turn      chan struct{} // held by the exchange that is on the wire
	stop      chan struct{} // closed by Close
	closeOnce sync.Once
	reading   sync.WaitGroup
	beating   sync.WaitGroup

	// writing is held from the first byte to the end of the call that writes:
	// the answer, and with it the next one's turn, may come before that.
	writing sync.Mutex

	mu      sync.Mutex
	pid     uint32        // the pooler's, until Confirm asks for the backend's own
	holding bool          // in a transaction, which has to stay open
	parting bool          // the next request but for heartbeats is the last
	current *exchange     // what the reader delivers to
	heard   time.Duration // boot time of the sending of the last answered request
	lostErr error
	lost    chan struct{}
	renewed chan time.Duration

	cfg       Config
	quorum    *Session             // commits beside this one, or nil; under mu
	comment   string               // before every query; under mu
	beatSQL   string               // the heartbeat's query
	onAnswer  func()               // what the reader does after each answer
	opened    time.Duration        // boot time
	age       time.Duration        // of the server's memory of locks, when opened
	tried     *int                 // the answer to the try of cfg.Claim, until a Try takes it
	evidence  map[string]*Evidence // by channel; under mu
	heed      map[string]func(payload string)
	preferred map[string]preferred // by channel; under mu
}

// LostError says that the session, and with it every lock it held, is gone.
type LostError struct {
	// Cause is the server's last word, the network's error, or its silence.
	Cause error
	// Heard is how long before the loss the last answered request was sent:
	// the lock was certainly held then.
	Heard time.Duration
}

func (e *LostError) Error() string { return e.Cause.Error() }
func (e *LostError) Unwrap() error { return e.Cause }

// ErrSilent is the cause of a loss where the server didn't answer in time.
var ErrSilent = errors.New("the server does not answer")

// Open connects and makes sure that the server can keep the promise: a
// primary of PostgreSQL 14 or newer with nothing in between that hands its
// connections to others. Of several hosts the first that will do is taken.
// Errors are of type *Error, or ctx's.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	// In this hook a refusal makes pgconn go on to the next host, so a DSN
	// with all nodes of a cluster finds the primary, target_session_attrs or
	// not: on a standby a lock is granted and means nothing.
	var ready prepared
	pg, err := connect(ctx, cfg, func(ctx context.Context, pg *pgconn.PgConn) (err error) {
		ready, err = prepare(ctx, pg, cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	s := newSession(pg.Conn(), pg.Frontend(), pg.PID(), cfg.Lease, bootClock())
	s.cancel = pg.CancelRequest
	s.age, s.tried = ready.age, ready.tried
	s.cfg = cfg
	s.Describe(cfg.Description)
	return s, nil
}

// connect logs in to the first host that fits.
func connect(ctx context.Context, cfg Config, fits pgconn.ValidateConnectFunc) (*pgconn.PgConn, error) {
	database := cfg.Database.Copy()
	database.ConnectTimeout = cfg.ConnectTimeout
	database.DialFunc = (&net.Dialer{
		// The kernel's probes find a dead peer while no request is under way;
		// silence after a request is the heartbeat's business.
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: cfg.Lease / 3, Interval: cfg.Lease / 6, Count: 3,
		},
		ControlContext: userTimeout(cfg.Lease),
	}).DialContext
	database.ValidateConnect = fits

	pg, err := pgconn.ConnectConfig(ctx, database)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, connectError(Target(cfg.Database), database, err)
	}
	return pg, nil
}

// clock is what leases are measured with.
type clock struct {
	now      func() time.Duration
	newTimer func() (timer, error)
}

// timer is one of a clock: boottime.Timer, or a test's.
type timer interface {
	Set(at time.Duration) error
	Wait() error
	Stop()
}

func bootClock() clock {
	return clock{boottime.Now, func() (timer, error) { return boottime.NewTimer() }}
}

func newSession(conn net.Conn, fe *pgproto3.Frontend, pid uint32, lease time.Duration, c clock) *Session {
	s := &Session{
		conn:    conn,
		fe:      fe,
		pid:     pid,
		lease:   lease,
		clock:   c,
		turn:    make(chan struct{}, 1),
		stop:    make(chan struct{}),
		lost:    make(chan struct{}),
		renewed: make(chan time.Duration, 1),
		heard:   c.now(),
		opened:  c.now(),
		beatSQL: heartbeat,

		evidence:  map[string]*Evidence{},
		heed:      map[string]func(string){},
		preferred: map[string]preferred{},
	}
	s.onAnswer = s.renew
	s.reading.Go(s.read)
	return s
}

// prepare asks, in one statement, what kind of server this is, and makes the
// settings only if nothing stands in between: set through a pooler they would
// stay on a server connection that others use. A pooler gives itself away by
// a process number that is not the backend's.
//
// In the same way it tries to take cfg.Claim.
func prepare(ctx context.Context, pg *pgconn.PgConn, cfg Config) (prepared, error) {
	major := majorVersion(pg)
	if major < oldestMajor {
		return prepared{}, tooOld(ctx, pg)
	}
	fit, try := "''", "NULL"
	claimed := len(cfg.Claim.Locks) > 0 && !cfg.Transaction
	if claimed {
		try = cfg.Claim.trial(cfg.Claim.Locks)
	}
	if !cfg.Transaction {
		settings := cfg.settings()
		if major >= 17 {
			settings = append(settings, [2]string{transactionTimeout, "0"})
		}
		fit = set(false, append(settings,
			[2]string{"idle_in_transaction_session_timeout", "0"},
			[2]string{"idle_session_timeout", milliseconds(cfg.Lease)},
			// While a request of ours waits for a lock only these tell the server
			// that we are gone. They are without effect on a unix socket.
			[2]string{"tcp_keepalives_idle", seconds(cfg.Lease / 3)},
			[2]string{"tcp_keepalives_interval", seconds(cfg.Lease / 6)},
			[2]string{"tcp_keepalives_count", "3"},
			[2]string{"tcp_user_timeout", milliseconds(cfg.Lease)},
			[2]string{"client_connection_check_interval", milliseconds(cfg.Lease / heartbeatsPerLease)}))
	}
	condition := fmt.Sprintf("pg_catalog.pg_backend_pid() = %d AND NOT pg_catalog.pg_is_in_recovery()", pg.PID())
	sql := fmt.Sprintf(`SELECT pg_catalog.pg_backend_pid(), pg_catalog.pg_is_in_recovery(),
	CASE WHEN %[1]s THEN %[2]s END, CASE WHEN %[1]s THEN %[3]s END, %[4]s`, condition, fit, try, serverAge)

	const facts = 4
	formats := append(make([]int16, facts), ageFormats()...)
	result := pg.ExecParams(ctx, sql, nil, nil, nil, formats).Read()
	err := result.Err
	var pgErr *pgconn.PgError
	switch {
	case !errors.As(err, &pgErr):
	case pgErr.Code == "42501" && claimed: // of the lock's function, as a Try will say
		cfg.Claim = Claim{}
		return prepare(ctx, pg, cfg)
	case strings.HasPrefix(pgErr.Code, "42"):
		return prepared{}, unsafe(needsPostgreSQL, "the server does not understand PostgreSQL's own functions: %s", serverSays(pgErr))
	}
	if err != nil {
		return prepared{}, err
	}
	if len(result.Rows) != 1 || len(result.Rows[0]) != len(formats) {
		return prepared{}, unsafe("", "the server does not answer as PostgreSQL does")
	}
	row := result.Rows[0]
	switch {
	case !cfg.Transaction && string(row[0]) != strconv.FormatUint(uint64(pg.PID()), 10):
		return prepared{}, errPooled(pg.PID(), string(row[0]))
	case string(row[1]) == "t":
		return prepared{}, errStandby()
	}
	age, err := ageOf(ctx, pg, row[facts:])
	if err != nil || !claimed {
		return prepared{age: age}, err
	}
	n, err := lastNumber([][]string{{string(row[facts-1])}})
	return prepared{age: age, tried: &n}, err
}

// prepared is what is known of a connection that is fit to hold locks: for how
// long the server has had its present memory of locks, and the answer to the
// try of a claim.
type prepared struct {
	age   time.Duration
	tried *int
}

func errPooled(ours uint32, servers string) *Error {
	return unsafe("connect to PostgreSQL itself, or use --transaction: a pooler gives the connection, and the lock on it, to others",
		"there is a connection pooler in between (it calls the session %d, the server calls it %s)", ours, servers)
}

const needsPostgreSQL = "a server of PostgreSQL 14 or newer is needed"

// tooOld is an errTooOld that names the product, which may be another than
// PostgreSQL.
func tooOld(ctx context.Context, pg *pgconn.PgConn) error {
	version := pg.ParameterStatus("server_version")
	results, err := pg.Exec(ctx, "SELECT version()").ReadAll()
	if err == nil && len(results) == 1 && len(results[0].Rows) == 1 {
		version = string(results[0].Rows[0][0])
	}
	return errTooOld(version)
}

func errTooOld(version string) *Error {
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
		return oldestMajor
	}
	return major
}

func errStandby() *Error {
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

// begin are the queries that begin the transaction which holds the lock. Read
// committed is the level at which no snapshot, which would hold back vacuum,
// is kept between two heartbeats.
func (cfg Config) begin() []string {
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

// oldestMajor is the first with idle_session_timeout and
// client_connection_check_interval.
const oldestMajor = 14

func unsafe(hint, format string, args ...any) *Error {
	return &Error{Kind: Unsafe, Hint: hint, err: fmt.Errorf(format, args...)}
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// seconds rounds up: 0 would stand for the server's own default.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// Describe has the session say this of itself from its next statement on.
func (s *Session) Describe(d Description) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.comment = d.comment()
}

// BackendPID is the server's process number for this session.
func (s *Session) BackendPID() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid
}

// Lost is closed when the session is gone, and its locks with it. Err then
// says why.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Err is the cause of the loss, of type *LostError, or nil.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lostErr
}

// Deadline is the instant (of the boot time clock) until which the session's
// locks are safe without any further word from the server.
func (s *Session) Deadline() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	deadline := s.heard + HolderShare(s.lease)
	if s.quorum != nil {
		deadline = min(deadline, s.quorum.Deadline())
	}
	return deadline
}

// Renewed delivers the latest Deadline after each answer of the server.
func (s *Session) Renewed() <-chan time.Duration { return s.renewed }

// Conn is the connection's network socket below any TLS. It is there to be
// duplicated; reading or writing it breaks the session.
func (s *Session) Conn() net.Conn {
	if wrapped, ok := s.conn.(interface{ NetConn() net.Conn }); ok {
		return wrapped.NetConn()
	}
	return s.conn
}

// setHolding says whether a transaction holds the lock from now on.
func (s *Session) setHolding(holding bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holding = holding
}

// fail records the first cause of a loss and tells everyone.
func (s *Session) fail(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lostErr != nil {
		return
	}
	s.lostErr = &LostError{Cause: cause, Heard: s.clock.now() - s.heard}
	close(s.lost)
}

// An exchange is one request and its answer.
type exchange struct {
	sent        time.Duration
	left        int // statements whose answer is outstanding
	rows        [][]string
	err         error
	unconfirmed string // what the server says of a commit without its standbys
	result      chan struct{}
}

// query sends queries, in one go, and waits for the answers: the rows of all,
// one after the other. Each query is a transaction of its own. An error of the server is a
// *pgconn.PgError, the loss of the session a *LostError. If ctx ends first the
// answer is still outstanding, and nothing is left to do but Close.
func (s *Session) query(ctx context.Context, queries ...string) ([][]string, error) {
	ex, err := s.send(ctx, queries...)
	if err != nil {
		return nil, err
	}
	return s.answer(ctx, ex, 0)
}

// answer waits for an answer for a holder's share of the lease, and for as much
// longer as the server has to wait. More is silence, which ends the session.
func (s *Session) answer(ctx context.Context, ex *exchange, longer time.Duration) ([][]string, error) {
	silence := time.NewTimer(HolderShare(s.lease) + longer)
	defer silence.Stop()
	select {
	case <-silence.C:
		s.fail(ErrSilent)
		return nil, s.Err()
	case <-ex.result:
		return ex.rows, ex.err
	case <-s.lost:
		return nil, s.Err()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *Session) send(ctx context.Context, queries ...string) (*exchange, error) {
	select {
	case s.turn <- struct{}{}:
		s.mu.Lock()
		last := s.parting
		s.mu.Unlock()
		return s.transmit(last, queries...)
	case <-s.lost:
		return nil, s.Err()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// transmit writes queries, and the goodbye behind them if they are the last. The
// caller has the turn, which the reader gives back with the last answer.
func (s *Session) transmit(last bool, queries ...string) (*exchange, error) {
	ex := &exchange{sent: s.clock.now(), left: len(queries), result: make(chan struct{})}
	s.mu.Lock()
	s.current = ex
	comment := s.comment
	s.mu.Unlock()
	s.writing.Lock()
	defer s.writing.Unlock()
	for _, sql := range queries {
		s.fe.SendQuery(&pgproto3.Query{String: comment + sql})
	}
	if last {
		s.fe.Send(&pgproto3.Terminate{})
	}
	if err := s.fe.Flush(); err != nil {
		s.fail(fmt.Errorf("send: %w", networkCause(err)))
		return nil, s.Err()
	}
	return ex, nil
}

// read is the goroutine with the pending read. It ends when the connection
// does.
func (s *Session) read() {
	for {
		msg, err := s.fe.Receive()
		s.mu.Lock()
		ex, holding, parting := s.current, s.holding, s.parting
		s.mu.Unlock()
		if err != nil && ex == nil && parting {
			return
		}
		if err != nil {
			// Poolers end a session with a plain error.
			if pgErr := ex.refusal(); pgErr != nil {
				s.fail(serverEnded{pgErr})
			}
			s.fail(networkCause(err))
			return
		}
		switch msg := msg.(type) {
		case *pgproto3.DataRow:
			if ex != nil {
				ex.rows = append(ex.rows, copyRow(msg.Values))
			}
		case *pgproto3.ErrorResponse:
			pgErr := pgconn.ErrorResponseToPgError(msg)
			// The server says FATAL before it gives the session's locks back
			// and closes the socket after, so no time is lost in waiting for
			// the end of the stream.
			if pgErr.SeverityUnlocalized == "FATAL" || pgErr.SeverityUnlocalized == "PANIC" {
				s.fail(serverEnded{pgErr})
			} else if ex != nil && ex.err == nil {
				ex.err = pgErr
			}
		case *pgproto3.NotificationResponse:
			s.hear(msg.PID, msg.Channel, msg.Payload)
		case *pgproto3.NoticeResponse:
			// That a commit was not confirmed is a warning without a code of
			// its own, but the function that gives it is in no way translated.
			if ex != nil && msg.Routine == "SyncRepWaitForLSN" {
				ex.unconfirmed = msg.Message
			}
		case *pgproto3.ReadyForQuery:
			if ex == nil {
				s.fail(errors.New("the server answered a question that nobody asked"))
				continue
			}
			// An error ends a transaction and frees its locks, and the server
			// goes on to answer.
			if holding && msg.TxStatus != 'T' {
				s.fail(transactionOver{ex.refusal()})
				continue
			}
			if ex.left--; ex.left == 0 {
				s.answered(ex)
			}
		}
	}
}

func (s *Session) answered(ex *exchange) {
	s.mu.Lock()
	s.current = nil
	// A commit that an administrator released from waiting for its standbys
	// ends with a warning, one that failed with an error; neither is a sign of
	// life of theirs.
	if ex.unconfirmed == "" && ex.err == nil {
		s.heard = ex.sent
	}
	s.mu.Unlock()
	s.onAnswer()
	<-s.turn
	close(ex.result)
}

// renew puts the deadline into the channel, in place of an older one.
func (s *Session) renew() {
	select {
	case <-s.renewed:
	default:
	}
	select {
	case s.renewed <- s.Deadline():
	default:
	}
}

// serverEnded is the server's own reason for ending the session.
type serverEnded struct{ pg *pgconn.PgError }

func (e serverEnded) Error() string { return "the server ended the session: " + serverSays(e.pg) }
func (e serverEnded) Unwrap() error { return e.pg }

// transactionOver says that the transaction that held the lock has ended.
type transactionOver struct{ pg *pgconn.PgError }

func (e transactionOver) Error() string {
	if e.pg == nil {
		return "the transaction that held the lock was ended"
	}
	return "the transaction that held the lock failed: " + serverSays(e.pg)
}

// refusal is the error that the server has answered with up to now, or nil.
func (ex *exchange) refusal() *pgconn.PgError {
	var pgErr *pgconn.PgError
	if ex != nil {
		errors.As(ex.err, &pgErr)
	}
	return pgErr
}

func networkCause(err error) error {
	var opErr *net.OpError
	if errors.As(err, &opErr) {
		return fmt.Errorf("the connection broke: %w", innermost(opErr.Err))
	}
	return errors.New("the server closed the connection")
}

// copyRow copies what the reader will overwrite. NULL reads as empty.
func copyRow(values [][]byte) []string {
	row := make([]string, len(values))
	for i, v := range values {
		row[i] = string(v)
	}
	return row
}

// heartbeat is the cheapest question there is.
const heartbeat = "SELECT pg_catalog.pg_backend_pid()"

// Keep starts the heartbeat, without which a held lock outlives neither the
// lease nor a silent network unnoticed. Nothing but Close ends it.
func (s *Session) Keep() {
	timer, err := s.clock.newTimer()
	if err != nil {
		s.fail(fmt.Errorf("make a timer for the heartbeat: %w", err))
		return
	}
	s.beating.Go(func() { s.beat(timer) })
	s.beating.Go(func() {
		<-s.stop
		timer.Stop()
	})
}

// beat is the goroutine that sends heartbeats, until the timer is stopped or the
// session is lost.
func (s *Session) beat(timer timer) {
	every := s.lease / heartbeatsPerLease
	for next := s.clock.now() + every; s.Err() == nil; {
		err := timer.Set(min(next, s.Deadline()))
		if err == nil {
			err = timer.Wait()
		}
		if err != nil {
			select {
			case <-s.stop: // as it should be
			default:
				s.fail(fmt.Errorf("the heartbeat's timer: %w", err))
			}
			return
		}
		now := s.clock.now()
		if now >= s.Deadline() {
			s.fail(s.silence())
			return
		}
		if now < next {
			continue
		}
		next = now + every
		select {
		case s.turn <- struct{}{}:
			if _, err := s.transmit(false, s.beatSQL); err != nil {
				return
			}
		default: // a request is under way, which is as good
		}
	}
}

// silence is the cause of the loss when the deadline has passed.
func (s *Session) silence() error {
	s.mu.Lock()
	quorum, heard := s.quorum, s.heard
	s.mu.Unlock()
	if quorum != nil && quorum.Deadline() < heard+HolderShare(s.lease) {
		return fmt.Errorf("%w: %w", errNoQuorum, ErrSilent)
	}
	return ErrSilent
}

// Part has the session end with the caller's next request, and says whether it will: with
// a quorum there is another session to close. The goodbye goes with the request,
// and nothing is left to do when the answer is there. Said by itself, just before
// a process ends, it would set the server's own process to work, for a
// millisecond, on the processor that this one wants for its end.
func (s *Session) Part() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parting = s.quorum == nil
	return s.parting
}

// closeTimeout bounds a polite goodbye to a server that may be gone.
const closeTimeout = time.Second

// Close ends the session and with it every lock it holds. A request that is
// still under way is cancelled, so that no backend goes on waiting for a lock
// that nobody wants any more.
func (s *Session) Close() {
	s.closeOnce.Do(func() {
		_ = s.conn.SetWriteDeadline(time.Now().Add(closeTimeout))
		close(s.stop)
		s.beating.Wait() // from here on nobody else writes
		s.mu.Lock()
		pending, lost, quorum := s.current != nil, s.lostErr != nil || s.parting, s.quorum
		s.mu.Unlock()
		if quorum != nil {
			quorum.Close()
		}
		if pending && !lost && s.cancel != nil {
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			_ = s.cancel(ctx) // at worst the server finds the socket closed later
			cancel()
		}
		if !lost {
			s.writing.Lock()
			s.fe.Send(&pgproto3.Terminate{})
			_ = s.fe.Flush()
			s.writing.Unlock()
		}
		_ = s.conn.Close()
		s.reading.Wait()
	})
}
