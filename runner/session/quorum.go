package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/pace"
)

// With a quorum, a primary that has lost its synchronous standbys loses its holders too, since a
// failover to those standbys may be under way. So each heartbeat of the second session is a commit
// that waits for the standbys. The heartbeat of the session with the lock commits nothing, and its
// deadline is the earlier one of the two sessions' deadlines.

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

// commit is AskSecond with a quorum.
func (s *Session) commit(ctx context.Context, columns string) ([]string, error) {
	second, err := s.Second(ctx)
	if err != nil {
		return nil, err
	}
	if err := second.freshen(ctx); err != nil {
		return nil, s.secondError(err)
	}
	second.noteIdentity(s.identity())
	s.dependOn(second)
	bounded, cancel := context.WithTimeoutCause(ctx, 2*leasetime.BeatEvery(s.cfg.Lease), s.noQuorum())
	defer cancel()
	for {
		rt, err := second.askInEncoding(bounded, commitRequest(columns))
		if err == nil && rt.warning != "" {
			err = &Error{Kind: Unreachable, err: fmt.Errorf("the commit was not confirmed: %s", rt.warning)}
		}
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

// dependOn makes this session end when the second one does, and makes the second one's
// heartbeats commits from now on.
func (s *Session) dependOn(second *Session) {
	s.mu.Lock()
	depended := s.depends
	if !depended {
		s.second, s.depends = second, true
	}
	s.mu.Unlock()
	if depended {
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
			cause := errors.Unwrap(second.EndError())
			// An *Error comes from judgeCommit, and explains itself. With ErrStopped the standbys
			// are not at fault.
			switch {
			case errors.As(cause, new(*Error)), errors.Is(cause, ErrStopped):
			case errors.Is(cause, ErrSilent):
				cause = s.silentStandbys()
			default:
				cause = fmt.Errorf("the second connection, on which the standbys confirm, has ended: %w", cause)
			}
			s.fail(cause)
		case <-s.done:
		case <-s.stop:
		}
	})
}

// ErrUnconfirmed means that the server answers, but the standbys are silent.
var ErrUnconfirmed = errors.New("the synchronous standbys do not confirm the commit")

// noQuorum is the error if the standbys are silent. Another host may be the primary by now.
func (s *Session) noQuorum() *Error {
	hint := "are the standbys that synchronous_standby_names asks for up? pg_stat_replication shows them"
	if s.cfg.Transaction {
		hint += ". Or has the pooler's pool no second connection free?"
	}
	return &Error{Kind: Unreachable, Hint: hint, err: ErrUnconfirmed, at: s.cfg.Database}
}

// silentStandbys is the cause of a loss if the second session is silent: ErrUnconfirmed and
// ErrSilent. If this session's server answers, the text doesn't say that it does not.
func (s *Session) silentStandbys() error {
	if s.overdue() {
		return fmt.Errorf("%w: %w", s.noQuorum(), ErrSilent)
	}
	return unspoken{s.noQuorum(), ErrSilent}
}

// unspoken is an error with a cause that its text leaves out.
type unspoken struct {
	error
	cause error
}

func (e unspoken) Unwrap() []error { return []error{e.error, e.cause} }

// standbysNowSQL are SQL expressions by which a commit shows whether it can have waited for
// standbys, and on which server: a pooler may lead to another one from one commit to the next. The
// server evaluates them before the commit, in the commit's transaction, and after it, in a separate
// statement. If somebody empties the setting in between, the server releases all waiting commits
// without a warning. But it tells its backends of the new setting before the process that releases
// them.
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
// wait for the standbys, and the server warn if somebody cancels that wait, whatever the role's
// defaults are, which a pooler's connections have. They write a few bytes of WAL, so that there is
// something to confirm.
const confirmableSQL = `pg_catalog.set_config('client_min_messages', 'warning', true) OPERATOR(pg_catalog.||) pg_catalog.set_config('synchronous_commit', 'on', true),
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
	case before[3] != here || after[3] != here:
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

// NoSenders is why a commit waits for nobody on a server that can have no standbys, whatever
// synchronous_standby_names says. NoSendersHint is what to do.
const (
	NoSenders     = "with max_wal_senders = 0 a commit waits for no standby"
	NoSendersHint = "raise it, which takes a restart, or leave out --quorum"
)

// learnStandbys asks a quorum's new second session about the server's standbys.
func (s *Session) learnStandbys(ctx context.Context, second *Session) error {
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
	s.server.promoted, s.server.attached = row[1] == "t", s.clock.now().Add(-settled)
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
