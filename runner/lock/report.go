package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// When says when the lock's session was lost. A new one then reports what became of the command:
// it records the end in the ledger, if the run is in one, and announces that the command is dead,
// so that the waiters need not wait for the lock-delay. So each row is one kind of Report:
//
//	              the session was lost                the ledger has         waiters hear
//	WhileRunning  while the command ran               lost, or SetEnd's end  dead
//	AfterEnd      after the command's end             SetEnd's end           dead; not of a list
//	beforeStart   or given up, before its command's   stopped                dead, unless there was
//	              start, but after the announcement                          a delay
//	inRelease     not at all, or by the release:      SetEnd's end           nothing more
//	              somebody has canceled the record
//
// A session may also be lost between bid.settle and the command's start. A run reports that as
// AfterEnd. A list reports it as WhileRunning: the start was announced, and after an end a list
// announces no death. Of a session that is lost during bid.settle a list reports nothing: the next
// holder waits for the lock-delay or, with a ledger, for the lost run.
type When int

// The moments of a loss.
const (
	WhileRunning When = iota
	AfterEnd
	beforeStart
	inRelease
)

// Report reports, for the lost locks of one run or one list, what became of their commands. Call it
// when the commands and all that they started are dead.
//
// The locks' own session is gone or useless, so this opens another one. For a run it first ends the
// old one, if the server still has it: after a healed partition the old session still has the
// locks. It retries failures for one lock-delay, and tells the Observer of them; after that nobody
// waits. If a command had ended, and no ledger waits for its end, it gives up after LateMost: this
// process waits for nothing else before it goes on or exits. So it does before a start, and not
// even a signal shortens that.
func Report(ctx context.Context, lost When, runs ...*Held) {
	if len(runs) == 0 {
		return
	}
	var owing *Held // a run whose end the ledger still needs, or nil
	if i := slices.IndexFunc(runs, func(h *Held) bool { return h.owes() }); i >= 0 {
		owing = runs[i]
	}
	cfg := runs[0].cfg
	announces := cfg.announcesDeath(lost)
	most := cmp.Or(cfg.LockDelay, leasetime.DeadAfter(cfg.Session.Lease, 0))
	switch lost {
	case WhileRunning:
		for _, h := range runs {
			h.end.Outcome = cmp.Or(h.end.Outcome, ledger.Lost)
		}
		if err := runs[0].Err(); err != nil {
			cfg.Observer.away(err) // an outage that lead reports later is counted from this moment
		}
	case AfterEnd:
		if owing == nil {
			most = min(most, LateMost)
		}
	case beforeStart: // it announces no more than giveBackQueries
		announces = announces && runs[0].mayAnnounceEnd
		ctx, most = context.WithoutCancel(ctx), min(most, LateMost)
	case inRelease:
		announces = false
	}
	if !announces && owing == nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, errTooLate)
	defer cancel()
	if err := persistReport(ctx, announces, owing, runs); err != nil {
		if announces {
			cfg.Log.Info("those who wait could not be told that the command is dead", "event", "unheard", "reason", err.Error())
		}
		if owing != nil && owing.owes() {
			owing.warnUnrecorded(err)
		}
	}
}

var errTooLate = errors.New("the database did not answer in time")

// persistReport calls reportOnce until it succeeds, fails for a reason that isn't waited out, or ctx
// ends.
func persistReport(ctx context.Context, announces bool, owing *Held, runs []*Held) error {
	cfg := runs[0].cfg
	cfg.SayTryingAfter(cfg.LockDelay)
	for backoff := pace.Doubling(backoffFirst/4, backoffMost); ; {
		err := reportOnce(ctx, announces, owing, runs)
		if err == nil {
			cfg.Observer.away(nil)
			return nil
		}
		if session.Passing(err) && ctx.Err() == nil { // otherwise nobody would know for what this process waits
			cfg.Observer.away(err)
		}
		if !session.Passing(err) || !pace.Sleep(ctx, backoff.Half()) {
			return err
		}
	}
}

// stayAfterDeath is how long the session that announced a death stays, so that the
// waiters can look up its role.
const stayAfterDeath = time.Second

// reportOnce opens a new session, on which it records the ends, if the ledger has the runs, and
// announces the deaths, if it is to.
func reportOnce(ctx context.Context, announces bool, owing *Held, runs []*Held) error {
	cfg := runs[0].cfg.sessionConfig()
	cfg.Quorum = false
	if owing != nil {
		cfg.LoginQuestion = owing.cfg.Ledger.QuestionSQL(cfg.Transaction)
	}
	s, err := session.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	var queries []string
	for _, h := range runs {
		if known, _ := h.cfg.Ledger.Applies(s.LoginAnswer()); known {
			queries = append(queries, h.recordQueries(h.end, h.endCommit())...)
		}
	}
	if len(queries) > 0 {
		err := insist(ctx, s, queries...)
		switch {
		case owing != nil && session.AnsweredError(err) != nil:
			owing.warnUnrecorded(ledger.Rejected(err, "the ledger"))
		case err != nil:
			return runs[0].cfg.rejected(err)
		}
		for _, h := range runs {
			h.owed = nil
		}
	}
	if !announces {
		return nil
	}
	queries = nil
	for _, h := range runs {
		queries = append(queries, h.announceDeathQueries()...)
	}
	if _, err := s.Query(ctx, queries...); err != nil {
		return runs[0].cfg.rejected(err)
	}
	pace.Sleep(ctx, stayAfterDeath)
	return nil
}

// announceDeathQueries are the queries that end a run's lost session and announce, for each lock,
// that its command is dead. If the session was lost in the release, its name may show the end by
// now. A list has closed its own.
func (h *Held) announceDeathQueries() (queries []string) {
	if !h.cfg.sharesSession() {
		queries = append(queries, fmt.Sprintf(`SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_get_activity(%d)
WHERE %s AND usesysid = (SELECT usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))`,
			h.Session.BackendPID(), describe.ShowsTokenSQL("application_name", h.Token)))
	}
	for _, l := range h.Locks {
		queries = append(queries, notifyQuery(evidence.Channel(l.ID), h.endPayloadSQL(evidence.Dead)))
	}
	return queries
}
