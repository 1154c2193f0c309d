package session

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/leasetime"
)

// A session may have a second one, which commits for it:
//
//   - With a quorum (quorum.go). Its commits hang while the standbys don't answer, and a session
//     that hangs in a commit is not idle: the server's idle_session_timeout could not free its lock.
//   - With a transaction that holds the lock (transaction.go). If that transaction wrote anything,
//     it would hold back vacuum for as long as it is open.

// AskSecond evaluates columns, which are SQL expressions, on the second session, and returns their
// values. The second session has to be on the server that has the locks. With a quorum it waits
// until the standbys have confirmed the commit, and from then on this session ends when the second
// one does.
func (s *Session) AskSecond(ctx context.Context, columns string) ([]string, error) {
	if s.cfg.Quorum {
		return s.commit(ctx, columns)
	}
	second, err := s.Second(ctx)
	if err != nil {
		return nil, err
	}
	row, err := second.Row(ctx, 0, "SELECT "+ServerIdentitySQL+", "+columns)
	switch {
	case err != nil:
		return nil, s.secondError(err)
	case row[0] != s.identity(): // the first server's name now leads to another server
		return nil, Errorf(Unreachable, "", "the second connection reached another server than the first")
	}
	return row[1:], nil
}

// freshen asks a session without a heartbeat for a sign of life, if the last one is old. Otherwise
// the heartbeat would begin with a deadline that has passed.
func (s *Session) freshen(ctx context.Context) error {
	s.mu.Lock()
	fresh := s.timer != nil || s.clock.now().Sub(s.provenAt) < leasetime.BeatEvery(s.cfg.Lease)
	s.mu.Unlock()
	if fresh {
		return nil
	}
	_, err := s.Query(ctx, PlainBeatQuery)
	return err
}

// Second returns the second session, which is at the address of this one. It opens that session at
// the first call, and again if it has ended while nothing depended on it.
func (s *Session) Second(ctx context.Context) (*Session, error) {
	s.openingSecond.Lock()
	defer s.openingSecond.Unlock()
	s.mu.Lock()
	second, depends := s.second, s.depends
	s.mu.Unlock()
	if second != nil {
		if depends || second.EndError() == nil {
			return second, nil
		}
		second.Close()
	}
	second, err := s.openSecond(ctx)
	if err != nil {
		return nil, s.secondError(err)
	}
	s.mu.Lock()
	s.second = second
	s.mu.Unlock()
	return second, nil
}

// openSecond opens the second session. Without a quorum its login needs no checks: AskSecond looks
// which server answers.
func (s *Session) openSecond(ctx context.Context) (*Session, error) {
	cfg := s.cfg
	cfg.Quorum = false
	if !s.cfg.Quorum {
		pg, err := connectToHold(ctx, cfg, &route{}, nil)
		if err != nil {
			return nil, err
		}
		return hijack(pg, cfg), nil
	}
	second, err := openOne(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if !s.cfg.Transaction { // without a heartbeat idle_session_timeout would end it; through a pooler that isn't set
		second.StartHeartbeat()
	}
	if err = s.learnStandbys(ctx, second); err != nil {
		second.Close()
		return nil, err
	}
	return second, nil
}

// DropSecond closes the second session, unless this one depends on it.
func (s *Session) DropSecond() {
	s.openingSecond.Lock()
	defer s.openingSecond.Unlock()
	s.mu.Lock()
	second, depends := s.second, s.depends
	if !depends {
		s.second = nil
	}
	s.mu.Unlock()
	if second != nil && !depends {
		second.Close()
	}
}

// ServerIdentitySQL is an SQL expression whose value differs between two servers, even of one
// cluster: the microseconds from 1970 to the postmaster's start.
const ServerIdentitySQL = "(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint"

// identity is the identity of the server that has the locks. A pooler may lead the second session
// to another server, whose standbys confirm nothing for this one.
func (s *Session) identity() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server.identity
}

func (s *Session) noteIdentity(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.identity = identity
}

const secondHint = "each grant takes a second connection for a moment: the pooler's pool has to leave one free. If there is no pooler, are a ledger's tables locked?"

// NoSecondError is the error if a second session gets no answer in time. Most often the pooler has
// no second connection to the server.
func NoSecondError() *Error {
	e := FullError("the second connection got no answer in time: the pooler may have no connection to the server free")
	e.Hint = secondHint
	return e
}

// secondError turns an error of the second session into one for the user of this session, which
// itself goes on.
func (s *Session) secondError(err error) error {
	var pgErr *pgconn.PgError
	var lost *LostError
	var e *Error
	switch {
	case errors.As(err, &e) && e.at != nil: // the error explains itself
		return e
	case e != nil:
	case errors.As(err, &lost):
		e = &Error{Kind: Unreachable, err: errors.New(lost.Error())}
	case errors.As(err, &pgErr):
		e = rejection(pgErr)
	default:
		return err
	}
	forUser := *e
	forUser.err = fmt.Errorf("the second session: %w", e)
	if s.cfg.Transaction && e.Kind == Unreachable && e.Hint == "" {
		forUser.Hint = secondHint
	}
	return &forUser
}
