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

// When a session is lost, a new one reports what became of the command: it notes the end in the
// ledger, if the run is in one, and tells the waiters, who then need not wait for the lock-delay.
// Which function does so depends on when the session was lost:
//
//	the session was lost              reported by         the ledger notes       waiters hear
//	while the command ran             ReportLostRuns      lost, or SetEnd's end  dead
//	after the command's end           ReportEndAfterLoss  SetEnd's end           dead; not for a list
//	or given up, before its command's reportUnstarted     stopped                dead, unless a
//	start, but after the announcement                                            delay began
//
// If the record is canceled in a release, a new session repeats that alone (handleRejectedRecord).
//
// A session may also be lost between bid.settle and the command's start. A run reports that as a
// loss after the end. A list reports it as a loss while the command ran: the start was announced,
// and after an end a list announces no death. Of a session that is lost during bid.settle a list
// reports nothing: the next holder waits for the lock-delay or, with a ledger, for the lost run.

// ReportLostRuns announces, for the lost locks of one run or one list, that their
// commands are dead, so that the waiters need not wait for the lock-delay. Call it when
// the commands and all that they started are dead.
//
// The locks' own session is gone or useless, so this opens another one. For a run it first ends the
// old one, if the server still has it: after a healed partition the old session still has the
// locks. It retries failures for one lock-delay, and tells the Observer of them; after that nobody
// waits. The ledger says that the commands were lost, unless SetEnd has set another end.
func ReportLostRuns(ctx context.Context, lost ...*Held) {
	if len(lost) == 0 {
		return
	}
	for _, h := range lost {
		h.end.Outcome = cmp.Or(h.end.Outcome, ledger.Lost)
	}
	if err := lost[0].Err(); err != nil {
		lost[0].cfg.Observer.away(err) // an outage that lead reports later is counted from this moment
	}
	announceDeaths(ctx, true, lost...)
}

// ReportEndAfterLoss is for a session that was lost after the command's end. On a new session it
// notes that end in the ledger, so that a success counts, and tells the waiters that the command is
// dead. If no ledger waits for the end, it gives up after LateMost: this process waits for nothing
// else before it goes on or exits.
func (h *Held) ReportEndAfterLoss(ctx context.Context) {
	if !h.owes() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, LateMost, errTooLate)
		defer cancel()
	}
	announceDeaths(ctx, !h.cfg.ofList, h)
}

// reportUnstarted tells the ledger and the waiters, on a new session, that no command runs. It is for
// a session that announced a start and was given up before its command started. It does so even
// after a signal. It announces no more than giveBackQueries.
func (w *waiter) reportUnstarted(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), LateMost, errTooLate)
	defer cancel()
	announceDeaths(ctx, w.got.mayAnnounceEnd(), w.got)
}

// announceDeaths opens a new session, on which it notes the ends in the ledger, if the ledger has
// the runs, and announces the deaths, if tellWaiters says so and a waiter may act on the news.
func announceDeaths(ctx context.Context, tellWaiters bool, lost ...*Held) {
	var owing *Held // a run whose end the ledger still needs, or nil
	if i := slices.IndexFunc(lost, func(h *Held) bool { return h.owes() }); i >= 0 {
		owing = lost[i]
	}
	cfg := lost[0].cfg
	tellWaiters = tellWaiters && cfg.LockDelay > 0 && cfg.announces() && !cfg.Claim.Shared
	if !tellWaiters && owing == nil {
		return
	}
	cfg.SayTryingAfter(cfg.LockDelay)
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(cfg.LockDelay, leasetime.DeadAfter(cfg.Session.Lease, 0)), errTooLate)
	defer cancel()
	for backoff := pace.Doubling(backoffFirst/4, backoffMost); ; {
		err := tryAnnounceDeaths(ctx, tellWaiters, owing, lost)
		if err == nil {
			cfg.Observer.away(nil)
			return
		}
		if session.Passing(err) && ctx.Err() == nil { // otherwise nobody would know for what this process waits
			cfg.Observer.away(err)
		}
		if !session.Passing(err) || !pace.Sleep(ctx, backoff.Half()) {
			if tellWaiters {
				cfg.Log.Info("those who wait could not be told that the command is dead", "event", "unheard", "reason", err.Error())
			}
			if owing != nil && owing.owes() {
				owing.warnUnrecorded(err)
			}
			return
		}
	}
}

var errTooLate = errors.New("the database did not answer in time")

// stayAfterDeath is how long the session that announced a death stays, so that the
// waiters can look up its role.
const stayAfterDeath = time.Second

func tryAnnounceDeaths(ctx context.Context, tellWaiters bool, owing *Held, lost []*Held) error {
	cfg := lost[0].cfg.sessionConfig()
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
	for _, h := range lost {
		if noted, _ := h.cfg.Ledger.Applies(s.LoginAnswer()); noted {
			queries = append(queries, h.finishQueries(h.end, h.endCommit())...)
		}
	}
	if len(queries) > 0 {
		err := insist(ctx, s, queries...)
		switch {
		case owing != nil && owing.onlyLedgerFailed(err, nil):
			owing.warnRejected(err)
		case err != nil:
			return lost[0].cfg.rejected(err)
		}
		for _, h := range lost {
			h.owed = nil
		}
	}
	if !tellWaiters {
		return nil
	}
	queries = nil
	for _, h := range lost {
		queries = append(queries, h.deathQueries()...)
	}
	if _, err := s.Query(ctx, queries...); err != nil {
		return lost[0].cfg.rejected(err)
	}
	pace.Sleep(ctx, stayAfterDeath)
	return nil
}

// deathQueries are the queries that end the lost session and announce, for each lock,
// that its command is dead. If it was lost in the release, its name may show the end by now.
func (h *Held) deathQueries() (queries []string) {
	if !h.cfg.ofList {
		queries = append(queries, fmt.Sprintf(`SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_get_activity(%d)
WHERE %s AND usesysid = (SELECT usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))`,
			h.Session.BackendPID(), describe.ShowsTokenSQL("application_name", h.Token)))
	}
	for _, l := range h.Locks {
		queries = append(queries, notifyQuery(evidence.Channel(l.ID), h.endPayloadSQL(evidence.Dead)))
	}
	return queries
}
