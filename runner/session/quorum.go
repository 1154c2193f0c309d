package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// With a quorum, a primary that has lost its synchronous standbys, to whom a
// failover may be under way, loses its leaders too: a heartbeat is then a
// commit that waits for the standbys.
//
// Such a commit hangs where they don't answer, and a session that hangs in a
// commit is not idle: the server's idle_session_timeout could not free its
// lock. So it has a session of its own. The lock's session goes on with its
// plain heartbeat, and the deadline is the earlier of both.
//
// With a transaction, too, there is a second session: for the token.

// StandbysNow are the SQL expressions by which a commit shows whether it can have
// waited for standbys. They are asked for before the commit, in its transaction,
// and in a statement of their own after it: a setting that is emptied in between
// lets go of all commits that wait, and says nothing. The server has its backends
// read a new setting before the process does that lets them go.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/replication/syncrep.c (SyncRepUpdateSyncStandbysDefined)
const StandbysNow = `pg_catalog.pg_backend_pid(), pg_catalog.pg_conf_load_time(), pg_catalog.current_setting('synchronous_standby_names')`

// afterCommit is that statement.
const afterCommit = "SELECT " + StandbysNow

// commitHeartbeat writes a few bytes of WAL, so that there is something to
// confirm, and waits for the standbys whatever the role's default is.
const commitHeartbeat = "SELECT " + StandbysNow + `, pg_catalog.set_config('synchronous_commit', 'on', true),
	pg_catalog.pg_logical_emit_message(true, 'pglead', '')`

// judge finds out whether a commit's rows, and those of afterCommit, say that
// standbys have confirmed it. It is neither confirmed nor an error if the setting
// may have been another for a moment.
func (s *Session) judge(rows Rows) (confirmed bool, err error) {
	if len(rows) != 2 || len(rows[0]) < 3 || len(rows[1]) != 3 {
		return false, ErrNotPostgreSQL()
	}
	before, after := rows[0], rows[1]
	if before[2] == "" || after[2] == "" {
		e := unsafe("", "synchronous_standby_names is empty by now, so that a commit waits for no standby")
		e.passing, e.at = true, s.cfg.Database
		return false, e
	}
	// Before a pooler the two may be of two backends, whose times differ.
	return before[0] != after[0] || before[1] == after[1], nil
}

// commit runs a commit's query on a second session until standbys have confirmed
// it, and returns its row without the columns of StandbysNow.
func (s *Session) commit(ctx context.Context, sql string) ([]string, error) {
	for {
		ex, err := s.send(ctx, Request{SQL: []string{sql, afterCommit}})
		if err != nil {
			return nil, err
		}
		answers, err := s.answer(ctx, ex, 0)
		switch {
		case err != nil:
			return nil, err
		case ex.unconfirmed != "":
			return nil, &Error{Kind: Unreachable, err: fmt.Errorf("the commit was not confirmed: %s", ex.unconfirmed)}
		case ex.confirmed:
			return answers[0][0][3:], nil
		}
	}
}

// ErrUnconfirmed means that the server is there, and the standbys are silent.
var ErrUnconfirmed = errors.New("the synchronous standbys do not confirm the commit")

// noQuorum says that the standbys are silent. Another host may be the primary by now.
func (s *Session) noQuorum() *Error {
	return &Error{
		Kind: Unreachable, Hint: "are the standbys that synchronous_standby_names asks for up? pg_stat_replication shows them",
		err: ErrUnconfirmed, at: s.cfg.Database,
	}
}

// Witness returns when the standbys have confirmed a commit on this server, with
// a quorum. A standby that confirms here has left any other primary. So from then
// on the holders of one that a failover has left behind, which needs some of the
// same standbys for its heartbeats, have no longer to live than after any other loss.
func (s *Session) Witness(ctx context.Context) error {
	if !s.cfg.Quorum {
		return nil
	}
	_, err := s.Commit(ctx, commitHeartbeat)
	return err
}

// Commit has a query's commit confirmed by the standbys, on the second session, and
// ties this one's fate to that. It returns its row without the columns of
// StandbysNow, with which the query has to begin.
func (s *Session) Commit(ctx context.Context, sql string) ([]string, error) {
	second, err := s.Second(ctx)
	if err != nil {
		return nil, err
	}
	s.join(second)
	bounded, cancel := context.WithTimeoutCause(ctx, s.lease*2/heartbeatsPerLease, s.noQuorum())
	defer cancel()
	row, err := second.commit(bounded, sql)
	return row, secondError(err, s.cfg.Transaction)
}

// Second is the second session, at the address of this one. If it has ended, while
// nothing depended on it, it is opened again.
func (s *Session) Second(ctx context.Context) (*Session, error) {
	s.secondOpens.Lock()
	defer s.secondOpens.Unlock()
	if second := s.secondOne(); second != nil {
		if second.Err() == nil {
			return second, nil
		}
		second.Close()
	}
	second, err := s.openSecond(ctx)
	if err != nil {
		return nil, secondError(err, s.cfg.Transaction)
	}
	s.mu.Lock()
	s.second = second
	s.mu.Unlock()
	return second, nil
}

// openSecond opens it. Without a quorum nothing is asked on it but for the token, and
// the answer to that says which server it is from.
func (s *Session) openSecond(ctx context.Context) (*Session, error) {
	cfg := s.cfg
	cfg.Quorum, cfg.AtLogin = false, ""
	if !s.cfg.Quorum {
		return openUnasked(ctx, cfg)
	}
	second, err := openOne(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if !s.cfg.Transaction { // whose settings have the server end it when it is idle
		second.Keep()
	}
	if err = s.acquaint(ctx, second); err != nil {
		second.Close()
		return nil, err
	}
	return second, nil
}

// DropSecond closes the second session.
func (s *Session) DropSecond() {
	s.secondOpens.Lock()
	defer s.secondOpens.Unlock()
	second := s.secondOne()
	s.mu.Lock()
	s.second = nil
	s.mu.Unlock()
	if second != nil {
		second.Close()
	}
}

// SameServer says whether a second session is on the server of that identity, with a
// quorum.
func (s *Session) SameServer(identity string) bool { return s.server == identity }

func (s *Session) secondOne() *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.second
}

// acquaint asks, on a new second session, what server it is on, and what that has
// for standbys: with a quorum.
func (s *Session) acquaint(ctx context.Context, second *Session) error {
	row, err := second.Row(ctx, 4, "SELECT "+ServerIdentity+", pg_catalog.current_setting('synchronous_standby_names'), "+Timeline+` > 1,
	(SELECT coalesce(pg_catalog.string_agg(extract(epoch FROM pg_catalog.clock_timestamp() - backend_start)::text, ' ' ORDER BY backend_start), '')
	FROM pg_catalog.pg_stat_replication WHERE state = 'streaming' AND sync_state <> 'async')`)
	if err != nil {
		return err
	}
	if row[1] == "" {
		e := unsafe("set it, for instance to 'ANY 1 (a, b)' with two standbys, or leave --quorum away",
			"--quorum needs synchronous standbys, but synchronous_standby_names is empty")
		e.passing, e.at = true, s.cfg.Database // during a failover it is
		return e
	}
	second.server = row[0]
	settled := settledFor(row[1], strings.Fields(row[3]))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promoted, s.settled = row[2] == "t", settled
	return nil
}

// settledFor is for how long so many standbys as a commit asks for have followed
// this server: given are the ages of their connections, in seconds, the oldest
// first. Who may not see them sees none.
func settledFor(names string, ages []string) time.Duration {
	list, err := ParseStandbys(names)
	if err != nil || list.Least < 1 || list.Least > len(ages) {
		return 0
	}
	age, err := strconv.ParseFloat(ages[list.Least-1], 64)
	if err != nil {
		return 0
	}
	return sinceThen(age)
}

// join ties this session's fate to the second's, whose heartbeats are commits from
// now on.
func (s *Session) join(second *Session) {
	s.mu.Lock()
	joined := s.quorum != nil
	s.quorum = second
	s.mu.Unlock()
	if joined {
		return
	}
	second.Beat(Heartbeat{Every: s.lease / heartbeatsPerLease, SQL: []string{commitHeartbeat, afterCommit}})
	second.mu.Lock()
	second.onAnswer = s.renew
	second.mu.Unlock()
	second.Keep()
	s.beating.Go(func() {
		select {
		case <-second.Lost():
			cause := errors.Unwrap(second.Err())
			// It is said by judge, or is no fault of the standbys.
			if !errors.As(cause, new(*Error)) && !errors.Is(cause, ErrStopped) {
				cause = fmt.Errorf("%w: %w", s.noQuorum(), cause)
			}
			s.fail(cause)
		case <-s.lost:
		case <-s.stop:
		}
	})
}

// ServerIdentity is an SQL expression that differs between two servers, also
// of one cluster.
const ServerIdentity = "extract(epoch FROM pg_catalog.pg_postmaster_start_time())"

// SecondError makes an error of the second session of a transaction one of the
// first's.
func SecondError(err error) error { return secondError(err, true) }

// secondError makes an error of the second session one of this one's, which is not
// lost for it.
func secondError(err error, pooled bool) error {
	var pgErr *pgconn.PgError
	var lost *LostError
	var e *Error
	switch {
	case errors.As(err, &e) && e.at != nil: // which says it all
		return e
	case e != nil:
	case errors.As(err, &pgErr):
		e = &Error{Kind: Denied, err: serverRefused{pgErr}}
		if passes(pgErr) {
			e.Kind = Unreachable
		}
	case errors.As(err, &lost):
		e = &Error{Kind: Unreachable, err: errors.New(lost.Error())}
	default:
		return err
	}
	hint := e.Hint
	if pooled && e.Kind == Unreachable {
		hint = "each grant takes a second connection for a moment: the pooler's pool has to leave one free"
	}
	return &Error{Kind: e.Kind, Hint: hint, Full: e.Full, err: fmt.Errorf("the second session: %w", e)}
}
