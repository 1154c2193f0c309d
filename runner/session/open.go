package session

import (
	"context"
	"math"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Open opens a session on a server that can keep the promise: a primary of
// PostgreSQL 14 or newer and, except with Transaction, nothing in between that hands
// its connections to others. Errors are of type *Error, or ctx's. The steps are, in this order:
//
//	hosts          of several hosts the first that passes the checks is taken
//	dial, login    connect, in login.go
//	login checks   one statement, in which checkLogin asks what server this is and
//	               makes the session's settings
//	first try      Config.FirstTry and Config.LoginQuestion, in that same
//	               statement; their answers wait in the session
//	wire           taken over from pgconn: from then on only the session reads it
//
// With Quorum a grant needs a second session, and Open opens both or neither. Otherwise sessions
// that wait for a lock could fill a server, and the first to get it would find no room for its
// second one. With only Transaction the caller opens it when it is needed: see Second.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	if !cfg.Quorum {
		return openOne(ctx, cfg)
	}
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

// openOne opens one session, on the first host that passes the login checks.
func openOne(ctx context.Context, cfg Config) (*Session, error) {
	var (
		way     route
		answers loginAnswers
	)
	pg, err := connectToHold(ctx, cfg, &way, answers.check(cfg))
	if err != nil {
		return nil, err
	}
	s := hijack(pg, cfg)
	s.server.began = s.server.began.Add(-answers.age)
	s.server.identity, s.firstTry, s.loginAnswer = answers.identity, answers.first, answers.login
	s.cfg.Database, s.cfg.Trying = way.pin(cfg.Database), nil // a second session has one address
	return s, nil
}

// check returns the login checks as pgconn calls them for each host. After a failed check pgconn
// tries the next host. So with a DSN that names all nodes of a cluster the primary is found, with
// or without target_session_attrs. (A standby's locks mean nothing.)
func (a *loginAnswers) check(cfg Config) pgconn.ValidateConnectFunc {
	return func(ctx context.Context, pg *pgconn.PgConn) (err error) {
		*a, err = checkLogin(ctx, pg, cfg)
		if err != nil {
			goodbye(pg)
		}
		return err
	}
}

// goodbye ends the session at a server that fails our checks: pgconn would only close the socket.
func goodbye(pg *pgconn.PgConn) {
	pg.Frontend().Send(&pgproto3.Terminate{})
	_ = pg.Frontend().Flush()
}

// hijack makes a session from a connection that has logged in. From then on nobody may
// call the connection's own methods, but for CancelRequest, which uses a connection of its own.
func hijack(pg *pgconn.PgConn, cfg Config) *Session {
	allow(pg, math.MaxInt) // from now on each round trip counts what it keeps: see keepRow
	s := newSession(pg.Conn(), pg.Frontend(), pg.PID(), cfg, bootClock())
	s.cancel, s.asIs = pg.CancelRequest, asIsSQL(pg, true)
	return s
}

// TakeFirstTry returns the answer to Config.FirstTry, once.
func (s *Session) TakeFirstTry() (value string, known bool) {
	first := s.firstTry
	if first == nil { // always so in a list: its goroutines only read firstTry, which no mutex guards
		return "", false
	}
	s.firstTry = nil
	return *first, true
}

// LoginAnswer is the latest answer to Config.LoginQuestion. It is empty for NULL.
func (s *Session) LoginAnswer() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loginAnswer
}

// AskLoginQuestion asks Config.LoginQuestion again.
func (s *Session) AskLoginQuestion(ctx context.Context) error {
	row, err := s.Row(ctx, 1, "SELECT "+s.cfg.LoginQuestion)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loginAnswer = row[0]
	return nil
}
