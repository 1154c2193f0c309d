package lock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// AnnounceDeaths announces, for the lost locks of one run or one list, that their
// commands are dead, so that the waiters need not wait for the lock-delay. Call it when
// the commands and all that they started are dead.
//
// The locks' own session is gone or useless, so this opens another one. For a run it first ends
// the old one, if the server still has it: after a healed partition the old session still has
// the locks. It retries failures for one lock-delay; after that nobody waits. The Observer is told
// of them. The ledger says that the commands were lost, unless SetEnd was told of another end.
func AnnounceDeaths(ctx context.Context, lost ...*Held) {
	if len(lost) == 0 {
		return
	}
	for _, h := range lost {
		h.lost = true
		h.end.Outcome = cmp.Or(h.end.Outcome, ledger.Lost)
	}
	lost[0].cfg.Observer.away(lost[0].Err()) // an outage that a leader speaks of later counts from here
	afterLoss(ctx, lost[0].isHeard(), lost...)
}

// TellEndLate is for a command whose session was lost after the command's end. On a new
// session it notes that end in the ledger, so that a success counts, and tells the waiters
// that the command is dead. Without a ledger it takes no longer than lateMost: this process
// has nothing else to do.
func (h *Held) TellEndLate(ctx context.Context) {
	if !h.recorded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lateMost)
		defer cancel()
	}
	afterLoss(ctx, h.isHeard() && !h.cfg.OfList, h)
}

const lateMost = 2 * time.Second

// tellUnstarted is TellEndLate for a session that was given up after it had announced a start,
// before its command could start. It does so even after a signal. It announces no more than
// giveBackQueries.
func (w *waiter) tellUnstarted(ctx context.Context) {
	g := w.grant
	if !g.endsAlone() {
		return
	}
	g.coversEarlier = false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lateMost)
	defer cancel()
	h := Held{grant: g, Session: w.s, end: ledger.End{Outcome: ledger.Stopped}}
	h.TellEndLate(ctx)
}

// isHeard says whether anybody acts on news of the command's death.
func (h *Held) isHeard() bool {
	return h.cfg.LockDelay > 0 && h.cfg.announces() && !h.cfg.Claim.shared()
}

// afterLoss opens a new session, notes the ends in the ledger, if it has the runs, and may
// tell the waiters.
func afterLoss(ctx context.Context, tellWaiters bool, lost ...*Held) {
	var recorded *Held // one of those that the ledger has, or nil
	if i := slices.IndexFunc(lost, func(h *Held) bool { return h.recorded }); i >= 0 {
		recorded = lost[i]
	}
	if !tellWaiters && recorded == nil {
		return
	}
	cfg := lost[0].cfg
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(cfg.LockDelay, leasetime.DeadAfter(cfg.Session.Lease, 0)))
	defer cancel()
	for backoff := pace.Doubling(backoffFirst/4, backoffMost); ; {
		err := afterLossOnce(ctx, tellWaiters, recorded, lost)
		if err == nil {
			cfg.Observer.away(nil)
			return
		}
		if session.Passing(err) && ctx.Err() == nil { // or nobody would know what this process waits for
			cfg.Observer.away(err)
		}
		if !session.Passing(err) || !pace.Sleep(ctx, backoff.Half()) {
			if tellWaiters {
				cfg.Log.Info("those who wait could not be told that the command is dead", "event", "unheard", "reason", err.Error())
			} else {
				lost[0].unnoted(err)
			}
			return
		}
	}
}

// stayAfterDeath is how long the session that announced a death stays, so that the
// waiters can look up its role.
const stayAfterDeath = time.Second

func afterLossOnce(ctx context.Context, tellWaiters bool, recorded *Held, lost []*Held) error {
	cfg := lost[0].cfg.session()
	cfg.Quorum = false
	if recorded != nil {
		cfg.LedgerQuestion = recorded.cfg.Ledger.QuestionSQL(cfg.Transaction)
	}
	s, err := session.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	var queries []string
	for _, h := range lost {
		if noted, _ := h.cfg.Ledger.Applies(s.LedgerAnswer()); noted {
			queries = append(queries, h.finishQueries(h.end)...)
		}
	}
	if tellWaiters {
		for _, h := range lost {
			queries = append(queries, h.deathQueries()...)
		}
	}
	if len(queries) == 0 {
		return nil
	}
	if _, err := s.Query(ctx, queries...); err != nil && (recorded == nil || !recorded.forgives(err)) {
		return lost[0].cfg.rejected(err)
	}
	if tellWaiters {
		pace.Sleep(ctx, stayAfterDeath)
	}
	return nil
}

// deathQueries are the queries that end the lost session and announce, for each lock,
// that its command is dead.
func (h *Held) deathQueries() (queries []string) {
	if !h.cfg.OfList {
		queries = append(queries, fmt.Sprintf(`SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_get_activity(%d)
WHERE pg_catalog.starts_with(application_name, '%s%d ') AND usesysid = (SELECT usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()))`,
			h.Session.BackendPID(), tokenPrefix, h.Token))
	}
	for _, l := range h.Locks {
		queries = append(queries, notifyQuery(evidence.Channel(l.ID), h.endPayloadSQL(evidence.Dead)))
	}
	return queries
}
