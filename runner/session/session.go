// Package session opens the one connection to PostgreSQL that holds a lock, and
// notices when it is lost.
//
// A session-level advisory lock belongs to a connection and to nothing else. So there is no pool
// here, and no context that might close the connection behind its holder's back: after the login
// only this package uses the connection, and the guard (package child) if it has to release the
// lock. One goroutine always waits for what the server sends, so it sees the server's last message
// within milliseconds. Another sends heartbeats, by which the server's silence is noticed.
//
// Read it in this order: open.go and login.go (the connection), wire.go (a request, its answer, and
// the reader), heartbeat.go (the lease), session.go (the loss, and the end). transaction.go,
// second.go and quorum.go are for poolers and quorums, client.go for commands that only ask. The
// rest is there to be looked up: dsn.go, sources.go and address.go say where the server is,
// standbys.go and age.go what kind of server it is, errors.go and sqlstate.go what an error means;
// rows.go, limit.go and encoding.go read its answers; socket_*.go has the socket's options, plain.go
// the attempts without TLS.
package session

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
)

// Config says how a session is opened and kept.
type Config struct {
	Database *pgconn.Config // from ParseDSN

	// Lease is how long the server lets the session live without hearing from it
	// (idle_session_timeout or, in a transaction, idle_in_transaction_session_timeout). The session
	// gives itself up earlier: see leasetime.HolderShare.
	Lease time.Duration

	// ConnectTimeout bounds each attempt, login and checks included. A Client waits as long for an
	// answer, or for answerTimeout if that is longer.
	ConnectTimeout time.Duration

	// Trying may be set. It is called before a host's name is looked up, and before each of its
	// addresses is tried, each with its own ConnectTimeout: a name may have any number of them.
	Trying func()

	// ApplicationName is what pg_stat_activity shows to all roles. A Session puts it into literals
	// of SQL, so there it has no quote and no backslash (describe.Name).
	ApplicationName string

	// Comment is put before the session's statements, which pg_stat_activity shows to
	// some roles.
	Comment describe.Comment

	// Transaction is for a pooler that gives the connection to others between transactions: a
	// transaction that stays open has the locks, and no setting outlives it.
	Transaction bool

	// FirstTry and LoginQuestion are SQL expressions: the first makes the first try of a lock,
	// and the second asks what the caller has to know of the database. The server evaluates them
	// together with the login checks, if it passes these, which saves a round trip. The session
	// keeps the answers for TakeFirstTry and LoginAnswer. Either may be empty. With Transaction
	// nothing that FirstTry takes may outlive the statement.
	FirstTry, LoginQuestion string

	// Quorum adds a second session, whose heartbeats wait for the synchronous standbys: see
	// quorum.go.
	Quorum bool
}

// UsesSecondSession says whether a grant takes a second session besides the one that
// holds the lock: see second.go.
func (cfg Config) UsesSecondSession() bool { return cfg.Quorum || cfg.Transaction }

// Session is a connection that is fit to hold locks. Several goroutines may use it, each for its
// own locks; one request is on the wire at a time.
type Session struct {
	cfg    Config
	clock  clock
	asIs   string // an SQL expression: see AsIsSQL
	conn   net.Conn
	fe     *pgproto3.Frontend          // the reader receives by it, and sends nothing
	cancel func(context.Context) error // for the request that is under way

	stop      chan struct{} // closed by Close
	closeOnce sync.Once
	done      chan struct{}  // closed when the session has ended
	reading   sync.WaitGroup // for the reader

	onWire chan struct{} // full while a round trip is under way
	// writing is held during a write. The answer can arrive before the write call returns,
	// so onWire alone would let the next request start too early.
	writing  sync.Mutex
	requests uint64 // how many were written so far; guarded by writing

	heartbeatOnce sync.Once
	beating       sync.WaitGroup // for the heartbeat, and dependOn
	beatQueued    atomic.Bool    // a heartbeat waits for the connection

	renewed  chan boottime.Instant // the latest deadline; written with mu held
	firstTry *string               // the answer to cfg.FirstTry, until it is taken

	pid     atomic.Uint32 // the backend's; behind a pooler the pooler's, until Begin
	holding atomic.Bool   // a transaction is open, holds the lock, and has to stay open: see transaction.go

	openingSecond sync.Mutex // held while second is opened or dropped

	mu              sync.Mutex // guards all that follows
	state           state
	end             error            // for requests that get no answer any more; nil before done is closed
	current         *roundTrip       // the request that the reader's messages answer
	provenAt        boottime.Instant // when the last answered request was sent
	answerTook      time.Duration    // how long that answer took, or 0 if this process may have been stopped meanwhile
	unansweredSince boottime.Instant // when the first unanswered request was sent; if unansweredSince <= provenAt, no request is open
	heartbeat       Heartbeat
	timer           timer               // of the heartbeat, once that is started
	beatAt          boottime.Instant    // when the next heartbeat is due
	onAnswer        func()              // called by the reader after each answer
	hearers         map[string]hearFunc // by channel
	comment         describe.Comment    // before every query
	loginAnswer     string              // the answer to cfg.LoginQuestion
	lacks           string              // the characters that the server is known to lack: see encoding.go
	server          serverFacts
	second          *Session // that commits for this one (second.go), or nil
	depends         bool     // the second session's deadline and end count for this one, too
}

// state says how a session ends. It only goes forward:
//
//	stateOpen                → stateParting  its owner sends a goodbye with a request (Request.Last)
//	stateOpen, stateParting  → stateClosed   its owner closes it
//	stateOpen, stateParting  → stateLost     anything else ends it before that, or before that request is answered
type state int

const (
	stateOpen state = iota
	stateParting
	stateClosed
	stateLost
)

// serverFacts are what the login, Begin and the second session have learned about the server.
type serverFacts struct {
	began    boottime.Instant // of its lock table
	identity string           // the value of ServerIdentitySQL

	// With a quorum:
	promoted bool             // the server was once a standby
	attached boottime.Instant // its standbys have followed it since then
}

// hearFunc is called with an announcement on a channel, and with the number of the session that
// made it. The number comes from the server, so nobody can forge it.
type hearFunc func(pid uint32, payload string)

// LostError says that the session has ended, by a loss or, with net.ErrClosed as its Cause, by
// Close. Its locks are gone.
type LostError struct {
	// Cause is the server's last message or its silence, or the network's error.
	Cause error
	// SilentFor is the time from the sending of the last answered request, when the lock was
	// certainly held, to the loss.
	SilentFor time.Duration
}

func (e *LostError) Error() string { return e.Cause.Error() }
func (e *LostError) Unwrap() error { return e.Cause }

// ErrSilent is the cause of a loss if the server didn't answer in time.
var ErrSilent = errors.New("the server does not answer")

// ErrStopped is the cause of a loss if this process didn't ask the server in time.
var ErrStopped = errors.New("the lease ran out, since this process was stopped or had no time to run")

// clock measures leases.
type clock struct {
	now      func() boottime.Instant
	newTimer func() (timer, error)
}

// timer is a clock's timer: boottime.Timer, or a test's.
type timer interface {
	Set(at boottime.Instant) error
	Wait() error
	Stop()
}

func bootClock() clock {
	return clock{boottime.Now, func() (timer, error) { return boottime.NewTimer() }}
}

func newSession(conn net.Conn, fe *pgproto3.Frontend, pid uint32, cfg Config, c clock) *Session {
	s := &Session{
		cfg:       cfg,
		clock:     c,
		server:    serverFacts{began: c.now()},
		conn:      conn,
		fe:        fe,
		comment:   cfg.Comment,
		onWire:    make(chan struct{}, 1),
		stop:      make(chan struct{}),
		done:      make(chan struct{}),
		renewed:   make(chan boottime.Instant, 1),
		provenAt:  c.now(), // a little late, since the login was sent before; no command starts before a later request is answered
		heartbeat: Heartbeat{Every: leasetime.BeatEvery(cfg.Lease), Request: Request{SQL: []string{PlainBeatQuery}}},
		hearers:   map[string]hearFunc{},
	}
	s.pid.Store(pid)
	s.onAnswer = s.renew
	s.reading.Go(s.read)
	return s
}

// SetComment replaces Config.Comment from the next statement on.
func (s *Session) SetComment(comment describe.Comment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.comment = comment
}

// BackendPID is the server's process number for this session. A pooler doesn't reveal it before
// Begin.
func (s *Session) BackendPID() uint32 { return s.pid.Load() }

// Done is closed when the session has ended, and its locks with it, by a loss or by Close.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is the cause of the loss, of type *LostError. It is nil for a session that goes on, and for
// one that its owner has ended.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != stateLost {
		return nil
	}
	return s.end
}

// EndError is the error of a request that gets no answer any more, since the session has ended, by
// a loss or by Close. It is nil for a session that goes on.
func (s *Session) EndError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Deadline is the instant until which the session's locks are safe without any further
// answer from the server.
func (s *Session) Deadline() boottime.Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline()
}

// deadline is Deadline, for a caller that holds mu.
func (s *Session) deadline() boottime.Instant {
	deadline := s.provenAt.Add(leasetime.HolderShare(s.cfg.Lease))
	if s.depends {
		deadline = min(deadline, s.second.Deadline())
	}
	return deadline
}

// Renewed delivers the latest Deadline after each answer of the server.
func (s *Session) Renewed() <-chan boottime.Instant { return s.renewed }

// Socket is the connection's network socket below any TLS, for the caller to duplicate.
// Reading or writing it breaks the session.
func (s *Session) Socket() net.Conn { return belowTLS(s.conn) }

// Encrypted says whether the connection is encrypted.
func (s *Session) Encrypted() bool { return s.Socket() != s.conn }

func belowTLS(conn net.Conn) net.Conn {
	for {
		wrapped, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = wrapped.NetConn()
	}
}

// fail ends the session, unless it has ended. That is a loss, unless its owner has closed it.
func (s *Session) fail(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return
	}
	if s.state == stateOpen || s.state == stateParting && s.current != nil {
		s.state = stateLost
	}
	s.end = &LostError{Cause: cause, SilentFor: s.clock.now().Sub(s.provenAt)}
	close(s.done)
}

// closeTimeout bounds a polite goodbye to a server that may be gone.
const closeTimeout = time.Second

// Close ends the session and with it every lock it holds.
func (s *Session) Close() {
	s.closeOnce.Do(func() {
		close(s.stop)
		s.mu.Lock()
		goodbye, listens := s.state == stateParting, len(s.hearers) > 0
		if s.state != stateLost {
			s.state = stateClosed
		}
		s.mu.Unlock()
		if !goodbye { // otherwise nothing is left to wait for, and this process may be about to end
			goodbye = s.sayGoodbye()
			defer s.reading.Wait()
		}
		if goodbye && listens {
			// Until the server has ended the session it may send announcements, and if it finds the
			// socket closed, it logs that a client was lost.
			_ = s.conn.SetReadDeadline(time.Now().Add(closeTimeout))
			s.reading.Wait()
		}
		_ = s.conn.Close()
		s.fail(net.ErrClosed)
	})
}

// sayGoodbye ends the session at the server. First it cancels a request that is still under way, so
// that no backend goes on waiting for a lock that nobody wants any more. It returns false if the
// goodbye could not be sent.
func (s *Session) sayGoodbye() bool {
	_ = s.conn.SetWriteDeadline(time.Now().Add(closeTimeout))
	s.beating.Wait() // from here on there are no heartbeats
	s.mu.Lock()
	pending, ended, second := s.current != nil, s.end != nil, s.second
	s.mu.Unlock()
	if second != nil {
		second.Close()
	}
	if ended {
		return false
	}
	if pending && s.cancel != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		_ = s.cancel(ctx) // at worst the server finds the socket closed later

		// See Request.Last: first wait for the answer.
		if s.cfg.Transaction {
			select {
			case s.onWire <- struct{}{}:
			case <-s.done:
			case <-ctx.Done():
			}
		}
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(closeTimeout)) // the first one may have passed
	s.fe.Send(&pgproto3.Terminate{})
	return s.fe.Flush() == nil
}
