package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// After a loss, a new session reports what became of the command: it records the end in the ledger,
// if the run is in one, and announces that the command is dead, so that the waiters need not wait
// for the lock-delay. These are the reports:
//
//	                 the session was lost                the ledger has         waiters hear
//	ReportLost       while the command ran               lost, or SetEnd's end  dead
//	ReportEnded      after the command's end             SetEnd's end           dead; not of a list
//	reportUnstarted  or given up, before its command's   stopped                dead, unless there was
//	                 start, but after the announcement                          a delay
//	recordAgain      not at all, or by the release:      SetEnd's end           nothing more
//	                 somebody has canceled the record
//
// A session may also be lost between bid.settle and the command's start. A run calls ReportEnded
// for that, and a list ReportLost: the start was announced, and after an end a list announces no
// death. Of a session that is lost during bid.settle a list reports nothing: the next holder waits
// for the lock-delay or, with a ledger, for the lost run.

// report is a report of the lost locks of one run, or of one list. It is sent when the commands and
// all that they started are dead.
//
// The locks' own session is gone or useless, so the report opens another one. For a run it first
// ends the old one, if the server still has it: after a healed partition the old session still has
// the locks. It retries failures for one lock-delay (without one, for 2/3 of the lease), and tells
// the Observer of them; after that nobody waits. If a command had ended, and no ledger waits for its
// end, it gives up after PatienceAtEnd: this process waits for nothing else before it goes on or
// exits. reportUnstarted has the same limit, and no signal shortens it.
type report struct {
	bids      []*bid
	announces bool          // that the commands are dead
	most      time.Duration // for how long it is tried
}

// newReport makes a report of one bid or more, whose Configs differ only in their claims.
func newReport(bids ...*bid) *report {
	cfg := &bids[0].cfg
	return &report{bids: bids, announces: cfg.announcesDeath(), most: cmp.Or(cfg.LockDelay, leasetime.DeadAfter(cfg.Session.Lease, 0))}
}

// owing is the first bid whose end the ledger still needs, or nil.
func (r *report) owing() *bid {
	i := slices.IndexFunc(r.bids, func(b *bid) bool { return b.record.owes() })
	if i < 0 {
		return nil
	}
	return r.bids[i]
}

// ReportLost reports the locks, of one run or one list, that were lost while their commands ran.
// The commands have to be dead by now.
func ReportLost(ctx context.Context, held ...*Held) {
	if len(held) == 0 {
		return
	}
	var bids []*bid
	for _, h := range held {
		h.record.end.Outcome = cmp.Or(h.record.end.Outcome, ledger.Lost)
		bids = append(bids, h.bid)
	}
	if err := held[0].Err(); err != nil {
		held[0].cfg.Observer.away(err) // an outage that lead reports later is counted from this moment
	}
	newReport(bids...).send(ctx)
}

// ReportEnded reports the locks of a run that were lost when its command had ended, or had not
// started.
func ReportEnded(ctx context.Context, h *Held) {
	r := newReport(h.bid)
	r.announces = r.announces && !h.cfg.ofList
	if r.owing() == nil {
		r.most = min(r.most, PatienceAtEnd)
	}
	r.send(ctx)
}

// reportUnstarted reports the lost locks of a bid that started no command. It announces a death
// only if giveBackQueries would have announced a clean end.
func (b *bid) reportUnstarted(ctx context.Context) {
	r := newReport(b)
	r.announces = r.announces && b.mayAnnounceEnd()
	r.most = min(r.most, PatienceAtEnd)
	r.send(context.WithoutCancel(ctx))
}

// send sends the report, and logs what could not be reported.
func (r *report) send(hurried context.Context) {
	if !r.announces && r.owing() == nil {
		return
	}
	ctx, cancel := context.WithTimeoutCause(hurried, r.most, ErrNoAnswer)
	defer cancel()
	cfg := &r.bids[0].cfg
	if err := r.persist(ctx); err != nil {
		if cause := context.Cause(hurried); cause != nil && errors.Is(err, cause) && !errors.Is(cause, ErrNoAnswer) {
			err = errNotAwaited // the cause speaks of a command that was not started
		}
		if r.announces {
			cfg.Log.Info("those who wait could not be told that the command is dead", "event", "unheard", "reason", err.Error())
		}
		if b := r.owing(); b != nil {
			b.warnUnrecorded(err)
		}
	}
}

// ErrNoAnswer is the reason if the time for a report, or for a release, is over.
var ErrNoAnswer = errors.New("the database did not answer in time")

var errNotAwaited = errors.New("a signal came before the database had answered")

// persist calls try until it succeeds, fails for a reason that isn't waited out, or ctx ends.
func (r *report) persist(ctx context.Context) error {
	cfg := &r.bids[0].cfg
	cfg.SayTrying(cfg.LockDelay)
	for backoff := crowd.UrgentBackoff(); ; {
		err := r.try(ctx)
		if err == nil {
			cfg.Observer.away(nil)
			return nil
		}
		if session.Passing(err) && ctx.Err() == nil { // otherwise nobody would know for what this process waits
			cfg.Observer.away(fmt.Errorf("report the end of the run: %w", err))
		}
		if !session.Passing(err) || !pace.Sleep(ctx, backoff.Half()) {
			return err
		}
	}
}

// stayAfterDeath is how long the session that announced a death stays, so that the
// waiters can look up its role.
const stayAfterDeath = time.Second

// try opens a new session, on which it records the ends, announces the deaths, and tidies up in the
// ledger.
func (r *report) try(ctx context.Context) error {
	cfg := r.bids[0].cfg.sessionConfig()
	cfg.Quorum = false
	if b := r.owing(); b != nil {
		cfg.LoginQuestion = b.cfg.Ledger.QuestionSQL(cfg.Transaction)
	}
	s, err := session.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	tidy, err := r.recordEnds(ctx, s)
	if err == nil && r.announces {
		err = r.announceDeaths(ctx, s)
	}
	if len(tidy) > 0 {
		_, _ = s.Query(ctx, tidy...)
	}
	return err
}

// recordEnds records the ends, if the ledger has the runs, and returns the queries that tidy up
// there.
func (r *report) recordEnds(ctx context.Context, s *session.Session) (tidy []string, err error) {
	var queries []string
	for _, b := range r.bids {
		if known, _ := b.cfg.Ledger.Applies(s.LoginAnswer()); known {
			queries = append(queries, b.cfg.toWrite(b.record.queries(b.record.end, b.endCommit()))...)
			tidy = append(tidy, b.tidyQueries()...)
		}
	}
	owing := r.owing()
	if owing == nil {
		return tidy, nil
	}
	if len(queries) > 0 {
		err = retryCanceled(ctx, s, queries...)
	}
	switch {
	case len(queries) == 0:
		owing.warnUnrecorded(errors.New("the ledger is gone, or not granted any more"))
	case session.AnsweredError(err) != nil:
		owing.warnUnrecorded(owing.rejectedByLedger(err))
	case err != nil:
		return tidy, err
	}
	for _, b := range r.bids {
		b.record.owed = nil
	}
	return tidy, nil
}

// announceDeaths announces the deaths, and stays until the waiters have looked up the session's role.
func (r *report) announceDeaths(ctx context.Context, s *session.Session) error {
	var ends, queries []string
	for _, b := range r.bids {
		ends, queries = append(ends, b.endLostQueries()...), append(queries, b.announceDeathQueries()...)
	}
	if len(ends) > 0 {
		if _, err := s.Query(ctx, ends...); err != nil && session.AnsweredError(err) == nil {
			return r.bids[0].cfg.Claim.rejected(err)
		}
	}
	if _, err := s.Query(ctx, queries...); err != nil {
		return r.bids[0].cfg.Claim.rejected(err)
	}
	pace.Sleep(ctx, stayAfterDeath)
	return nil
}

// endLostQueries are the queries that end a run's lost session, if this role may. If that was lost
// in the release, its name may show the end by now. A list has closed its own.
func (b *bid) endLostQueries() (queries []string) {
	if !b.cfg.ofList {
		queries = append(queries, fmt.Sprintf(`SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_get_activity(%d)
WHERE %s AND usesysid = (SELECT usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))`,
			b.Session.BackendPID(), describe.ShowsTokenSQL("application_name", b.Token)))
	}
	return queries
}

// announceDeathQueries announce, for each lock, that its command is dead.
func (b *bid) announceDeathQueries() (queries []string) {
	for _, l := range b.Locks() {
		queries = append(queries, notifyQuery(evidence.Channel(l.ID), b.endPayloadSQL(evidence.Dead)))
	}
	return queries
}
