package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// succession is what a holder knows of the waiters that may be next: whether some were dormant when
// its token was drawn, and whether it ever found the server full.
type succession struct {
	who     crowd.Followers
	line    lockkey.ID // where they stand
	calling bool       // the session calls them
}

// whoFollows makes the succession of a waiter that has become the holder. With a ledger nobody
// needs a call, since the ledger says how a holder ended.
func (w *waiter) whoFollows() succession {
	s := succession{line: w.nextLine()}
	switch {
	case w.usesLedger() || w.cfg.Claim.shared() || len(w.grant.Locks) != 1:
	case w.grant.dormant:
		s.who = crowd.SomeDormant
	case w.candidate.past.has(crowded):
		s.who = crowd.SomeAbsent
	}
	return s
}

// call calls the waiters that may be next. It returns when one of them listens, when all dormant
// waiters have left, or when its patience is over.
func (h *Held) call(ctx context.Context) error {
	patience := h.next.who.Patience(h.cfg.Session.Lease)
	if patience == 0 {
		return nil
	}
	for began, said := time.Now(), false; ; said = true {
		queries := []string{h.next.heardQuery()}
		if !h.next.calling {
			queries = append(queries, "SELECT "+advisory.CallOf(h.next.line).TrySQL())
		}
		answers, err := h.Session.Ask(ctx, session.Request{SQL: queries})
		if err != nil {
			return h.cfg.rejected(err)
		}
		h.next.calling = h.next.calling || answers[1].Is("t") // a waiter's heartbeat may hold the lock for an instant
		if answers[0].Is("t") || time.Since(began) >= patience {
			return nil
		}
		if !said {
			h.cfg.Log.Info("holding the lock until somebody in line listens", "event", "lingering", "token", h.Token, "rest", patience)
		}
		if !pace.Sleep(ctx, crowd.CallEvery) {
			return nil
		}
	}
}

// endCallQuery is the query that ends the call, if there is one.
func (s *succession) endCallQuery() (query []string) {
	if !s.calling {
		return nil
	}
	return []string{"SELECT " + advisory.CallOf(s.line).UnlockSQL()}
}

// heardQuery is a query that says whether one of the waiters that may be next listens. It looks
// only at the first MostListeners places: a waiter that was pushed back behind them keeps its mark
// until its next look. The order is that of wordQuery.
func (s *succession) heardQuery() string {
	enough := "bool_or(listens) IS TRUE"
	if s.who == crowd.SomeDormant { // NULL: all have left
		enough = "bool_or(listens) IS NOT FALSE"
	}
	return fmt.Sprintf(`SELECT %s FROM (
	SELECT bool_or(%s) AS listens FROM pg_catalog.pg_lock_status()
	WHERE locktype = 'advisory' AND granted AND %s AND pid <> pg_catalog.pg_backend_pid()
	GROUP BY objid ORDER BY objid LIMIT %d) AS first`, enough, advisory.IsMark, advisory.InLinesOf(s.line), crowd.MostListeners)
}
