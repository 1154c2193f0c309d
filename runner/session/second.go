package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/pace"
)

// The second session. With a quorum, a primary that has lost its synchronous standbys
// loses its holders too, since a failover to those standbys may be under way. So each
// heartbeat is a commit that waits for the standbys.
//
// Such a commit hangs while the standbys don't answer, and a session that hangs in a
// commit is not idle: the server's idle_session_timeout could not free its lock. So the
// commits run on a second session. The heartbeat of the session with the lock commits
// nothing, and its deadline is the earlier one of the two sessions' deadlines.
//
// With a transaction that holds the lock (Config.Transaction) there is a second session, too, which
// draws the token and, with a ledger, asks it.

// standbysNowSQL are SQL expressions by which a commit shows whether it can have waited for
// standbys, and on which server: a pooler may lead to another one from one commit to the next. The
// server evaluates them before the commit, in the commit's transaction, and after it, in a separate
// statement. If somebody empties the setting in between, the server releases all waiting commits
// without a warning. But its backends read the new setting before the process that releases them
// does.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/replication/syncrep.c (SyncRepUpdateSyncStandbysDefined)
const standbysNowSQL = `pg_catalog.pg_backend_pid(), pg_catalog.pg_conf_load_time(), pg_catalog.current_setting('synchronous_standby_names'), ` +
	ServerIdentitySQL

// A commit shows these, then how far the standbys have to confirm it, and then the caller's
// columns. The statement after it shows these, and how far each of the standbys has confirmed.
const (
	standbysNowWidth = 4
	commitWidth      = standbysNowWidth + 2
)

// afterCommitQuery is the statement after a commit. See Request.commit. A commit does not wait
// before the checkpointer has taken up synchronous_standby_names, which may be long after everybody
// sees it. So this asks for the processes that send the log to standbys: how far each standby that
// counts has confirmed it. To a role without pg_read_all_stats the server shows no more than how
// many there are.
// https://github.com/postgres/postgres/blob/REL_15_STABLE/src/backend/replication/walsender.c (pg_stat_get_wal_senders)
const afterCommitQuery = "SELECT " + standbysNowSQL + `,
	(SELECT coalesce(pg_catalog.string_agg(CASE WHEN state IS NULL THEN '` + hiddenSender + `'
		WHEN sync_state IN ('sync', 'quorum') THEN pg_catalog.pg_wal_lsn_diff(flush_lsn, '0/0')::text END, ' '), '')
	FROM pg_catalog.pg_stat_get_wal_senders())`

// hiddenSender stands for a process of which this role may see nothing else.
const hiddenSender = "hidden"

// confirmableSQL are SQL expressions of a transaction that is to be confirmed. They make the commit
// wait for the standbys, whatever the role's default is, and write a few bytes of WAL, so that
// there is something to confirm.
const confirmableSQL = `pg_catalog.set_config('synchronous_commit', 'on', true),
	pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_logical_emit_message(true, 'pglead', ''), '0/0')`

// commitRequest is a commit that evaluates these columns. judgeCommit judges its answer.
func commitRequest(columns string) Request {
	return Request{SQL: []string{"SELECT " + standbysNowSQL + ", " + confirmableSQL + ", " + columns}, commit: true}
}

// nothingElse are the columns of a commit that has nothing else to do than to be confirmed.
const nothingElse = "NULL"

// judgeCommit says whether the answers to a commit and to afterCommitQuery show that standbys have
// confirmed it. Each has one row then. If the setting may have changed for a moment, or the commit
// can't have waited, it counts as unconfirmed, without an error: commit repeats it.
func (s *Session) judgeCommit(answers []Rows) (confirmed bool, err error) {
	if len(answers[0]) != 1 || len(answers[0][0]) < commitWidth || len(answers[1]) != 1 || len(answers[1][0]) != standbysNowWidth+1 {
		return false, NotPostgreSQL()
	}
	before, after := answers[0][0], answers[1][0]
	var e *Error
	switch here := s.identity(); {
	case here != "" && (before[3] != here || after[3] != here):
		e = Errorf(Unreachable, "", "the second connection leads to another server than the one that has the lock")
	case before[2] == "" || after[2] == "":
		e = Errorf(NoStandbys, "", "synchronous_standby_names is empty by now, so that a commit waits for no standby")
	}
	if e != nil {
		e.at = s.cfg.Database
		return false, e
	}
	// Through a pooler two backends may have answered, whose times differ.
	unchanged := before[0] != after[0] || before[1] == after[1]
	return unchanged && enoughConfirm(before[2], before[commitWidth-1], strings.Fields(after[standbysNowWidth])), nil
}

// enoughConfirm says whether as many of the senders as the setting asks for may have had their
// standby confirm this position in the log.
func enoughConfirm(names, position string, senders []string) bool {
	list, err := ParseStandbys(names)
	if err != nil {
		return true // nobody here knows how many it asks for
	}
	committed, err := strconv.ParseInt(position, 10, 64)
	confirming := 0
	for _, sender := range senders {
		if at, err2 := strconv.ParseInt(sender, 10, 64); sender == hiddenSender || err == nil && err2 == nil && at >= committed {
			confirming++
		}
	}
	return confirming >= list.Least
}

// ErrUnconfirmed means that the server answers, but the standbys are silent.
var ErrUnconfirmed = errors.New("the synchronous standbys do not confirm the commit")

// noQuorum is the error if the standbys are silent. Another host may be the primary by now.
func (s *Session) noQuorum() *Error {
	return &Error{
		Kind: Unreachable, Hint: "are the standbys that synchronous_standby_names asks for up? pg_stat_replication shows them",
		err: ErrUnconfirmed, at: s.cfg.Database,
	}
}

// AwaitStandbys returns when the standbys have confirmed a commit on this server; without a quorum
// it returns at once. A standby that confirms here has left any other primary. So a primary that a
// failover left behind has no standbys for its holders' heartbeats: from then on the commands of
// those holders live no longer than after any other loss.
func (s *Session) AwaitStandbys(ctx context.Context) error {
	if !s.cfg.Quorum {
		return nil
	}
	_, err := s.commit(ctx, nothingElse)
	return err
}

// commitAgain is the pause before a commit that was not confirmed is repeated.
const commitAgain = 50 * time.Millisecond

// OnSecond evaluates columns, which are SQL expressions, on the second session, and returns their
// values. The second session has to be on the server that has the locks. With a quorum it waits
// until the standbys have confirmed the commit, and from then on this session ends when the second
// one does.
func (s *Session) OnSecond(ctx context.Context, columns string) ([]string, error) {
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

// commit is OnSecond with a quorum.
func (s *Session) commit(ctx context.Context, columns string) ([]string, error) {
	second, err := s.Second(ctx)
	if err != nil {
		return nil, err
	}
	if err := second.freshen(ctx); err != nil {
		return nil, s.secondError(err)
	}
	if err := s.identify(ctx); err != nil {
		return nil, err
	}
	second.noteIdentity(s.identity())
	s.dependOn(second)
	bounded, cancel := context.WithTimeoutCause(ctx, 2*leasetime.BeatEvery(s.cfg.Lease), s.noQuorum())
	defer cancel()
	for {
		rt, err := second.askConfirmed(bounded, commitRequest(columns))
		switch {
		case err != nil:
			return nil, s.secondError(err)
		case rt.confirmed:
			return rt.answers[0][0][commitWidth:], nil
		case !pace.Sleep(bounded, commitAgain):
			return nil, s.secondError(context.Cause(bounded))
		}
	}
}

// freshen asks a session without a heartbeat for a sign of life, if the last one is old: a waiter
// through a pooler doesn't need its second session for as long as it waits. Otherwise the heartbeat
// would begin with a deadline that has passed.
func (s *Session) freshen(ctx context.Context) error {
	if s.beats() || s.clock.now().Sub(s.lastHeard()) < leasetime.BeatEvery(s.cfg.Lease) {
		return nil
	}
	return s.Ping(ctx)
}

// Second returns the second session, which is at the address of this one. It opens that session at
// the first call, and again if it has ended while nothing depended on it.
func (s *Session) Second(ctx context.Context) (*Session, error) {
	s.second.opening.Lock()
	defer s.second.opening.Unlock()
	s.mu.Lock()
	second := s.second.session
	s.mu.Unlock()
	if second != nil {
		if second.noAnswer() == nil {
			return second, nil
		}
		second.Close()
	}
	second, err := s.openSecond(ctx)
	if err != nil {
		return nil, s.secondError(err)
	}
	s.mu.Lock()
	s.second.session = second
	s.mu.Unlock()
	return second, nil
}

// openSecond opens the second session. Without a quorum its login needs no checks: the first thing
// that it does is to draw the token, and the answer names the server.
func (s *Session) openSecond(ctx context.Context) (*Session, error) {
	cfg := s.cfg
	cfg.Quorum, cfg.FirstTry = false, ""
	if !s.cfg.Quorum {
		pg, err := connectToHold(ctx, cfg, &route{}, nil)
		if err != nil {
			return nil, err
		}
		return takeWire(pg, cfg), nil
	}
	second, err := openOne(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if !s.cfg.Transaction { // the server ends the second session when it is idle
		second.StartHeartbeat()
	}
	if err = s.acquaint(ctx, second); err != nil {
		second.Close()
		return nil, err
	}
	return second, nil
}

// DropSecond closes the second session.
func (s *Session) DropSecond() {
	s.second.opening.Lock()
	defer s.second.opening.Unlock()
	s.mu.Lock()
	second := s.second.session
	s.second.session = nil
	s.mu.Unlock()
	if second != nil {
		second.Close()
	}
}

// NoSenders is why a commit waits for nobody on a server that can have no standbys, whatever
// synchronous_standby_names says. NoSendersHint is what to do.
const (
	NoSenders     = "with max_wal_senders = 0 a commit waits for no standby"
	NoSendersHint = "raise it, which takes a restart, or leave out --quorum"
)

// acquaint asks a quorum's new second session about the server's standbys.
func (s *Session) acquaint(ctx context.Context, second *Session) error {
	row, err := second.Row(ctx, 4, "SELECT pg_catalog.current_setting('synchronous_standby_names'), "+TimelineSQL+` > 1,
	(SELECT coalesce(pg_catalog.string_agg(extract(epoch FROM pg_catalog.clock_timestamp() - backend_start)::text, ' ' ORDER BY backend_start), '')
	FROM pg_catalog.pg_stat_replication WHERE state = 'streaming' AND sync_state <> 'async'), pg_catalog.current_setting('max_wal_senders')`)
	if err != nil {
		return err
	}
	var e *Error
	switch {
	case row[0] == "":
		e = Errorf(NoStandbys, "set it, for instance to 'ANY 1 (a, b)' with two standbys, or leave out --quorum",
			"--quorum needs synchronous standbys, but synchronous_standby_names is empty")
	case row[3] == "0": // https://github.com/postgres/postgres/blob/REL_15_STABLE/src/include/replication/syncrep.h (SyncRepRequested)
		e = Errorf(NoStandbys, NoSendersHint, "--quorum needs synchronous standbys, but "+NoSenders)
	}
	if e != nil {
		e.at = s.cfg.Database
		return e
	}
	settled := attachedFor(row[0], strings.Fields(row[2]))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts.promoted, s.facts.attached = row[1] == "t", s.clock.now().Add(-settled)
	return nil
}

// attachedFor is how long this server has been followed by as many standbys as a commit needs. ages
// are those of the standbys' connections, in seconds, the oldest first. A role that may not see the
// standbys gets none.
func attachedFor(names string, ages []string) time.Duration {
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

// dependOn makes this session end when the second one does, and makes the second one's
// heartbeats commits from now on.
func (s *Session) dependOn(second *Session) {
	s.mu.Lock()
	joined := s.second.governs != nil
	s.second.governs = second
	s.mu.Unlock()
	if joined {
		return
	}
	second.SetHeartbeat(Heartbeat{Request: commitRequest(nothingElse)})
	second.mu.Lock()
	second.onAnswer = s.renew
	second.mu.Unlock()
	second.StartHeartbeat()
	s.beating.Go(func() {
		select {
		case <-second.done:
			cause := errors.Unwrap(second.noAnswer())
			// An *Error comes from judgeCommit, and explains itself. With ErrStopped the standbys
			// are not at fault.
			if !errors.As(cause, new(*Error)) && !errors.Is(cause, ErrStopped) {
				cause = fmt.Errorf("%w: %w", s.noQuorum(), cause)
			}
			s.fail(cause)
		case <-s.done:
		case <-s.stop:
		}
	})
}

// ServerIdentitySQL is an SQL expression whose value differs between two servers, even of
// one cluster.
const ServerIdentitySQL = "extract(epoch FROM pg_catalog.pg_postmaster_start_time())"

// identify asks the server for its identity. In a transaction Begin has done that.
func (s *Session) identify(ctx context.Context) error {
	if s.identity() != "" {
		return nil
	}
	row, err := s.Row(ctx, 1, "SELECT "+ServerIdentitySQL)
	if err != nil {
		return Rejected(err, "ask which server has the lock")
	}
	s.noteIdentity(row[0])
	return nil
}

// noteIdentity notes the identity of the server that has the locks. A pooler may lead the second
// session to another server, whose standbys confirm nothing for this one.
func (s *Session) noteIdentity(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts.identity = identity
}

// identity is the identity of the server that has the locks, or empty before it was asked.
func (s *Session) identity() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts.identity
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
	case errors.As(err, &pgErr):
		e = rejection(pgErr)
	case errors.As(err, &lost):
		e = &Error{Kind: Unreachable, err: errors.New(lost.Error())}
	default:
		return err
	}
	hint := e.Hint
	if s.cfg.Transaction && e.Kind == Unreachable && hint == "" {
		hint = "each grant takes a second connection for a moment: the pooler's pool has to leave one free"
	}
	return &Error{Kind: e.Kind, Hint: hint, Full: e.Full, err: fmt.Errorf("the second session: %w", e)}
}
