package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// Each NOTIFY wakes all listening sessions of a database, so in a long line only the first few
// listen. The others are dormant: a holder's clean end does not reach them. A dormant waiter that
// took a free lock would have heard nothing of the last holder, and would have to hold the lock for
// the lock-delay. So a holder that knew of a dormant waiter when it drew its token
// calls when it is done, and keeps the lock until one of the first in line listens, which may be so
// already. This is for speed: the promise does not depend on it.
//
// To call is to take a lock, which the heartbeat of a dormant waiter then can't take. Many may call
// at once. Waiters call, too, while few listen (FewListen): otherwise brief commands would use up
// the remaining listeners before a heartbeat comes.

// goDormant makes the waiter dormant, and cancels its turn: if it took the lock now, it
// would have heard nothing of the last holder.
func (w *waiter) goDormant(ctx context.Context) error {
	w.turn.DropTry()
	w.unwatch() // otherwise the end of the watch would later replace this heartbeat
	w.Session.SetHeartbeat(session.Heartbeat{
		Every:   crowd.HearCall(w.cfg.Session.Lease),
		Request: session.Request{SQL: []string{"SELECT " + advisory.Exclusive(advisory.CallOf(w.place.line).ID).TryXactSQL()}, Then: w.hearCall},
	})
	if w.place.has[markLock] { // the mark goes before the UNLISTEN, so that nobody relies on it
		if err := w.send(ctx, "SELECT "+w.lockOf(markLock).UnlockSQL()); err != nil {
			return err
		}
		w.place.has[markLock] = false
	}
	return w.listener.unlisten(ctx)
}

// hearCall reads the answer to a dormant waiter's heartbeat.
func (w *waiter) hearCall(answers []session.Rows) {
	if !answers[0].Is("f") {
		return
	}
	w.called.Store(true)
	nudge(w.listener.news)
}

// callIfFew calls while few listen and others are dormant. With several locks nobody
// calls.
func (w *waiter) callIfFew(ctx context.Context, found *evidence.Look) error {
	few := crowd.FewListen(found.Marked, found.Waiting) && w.cfg.Claim.hasOneLine()
	if few == w.place.has[callLock] {
		return nil
	}
	call := w.lockOf(callLock)
	sql := call.UnlockSQL()
	if few {
		sql = call.TrySQL()
	}
	n, err := w.askNumber(ctx, "SELECT "+sql+"::int")
	if n == 1 { // otherwise another waiter's heartbeat has the lock, and the next look comes soon
		w.place.has[callLock] = few
	}
	return err
}

// whomToCall says whom in line a waiter that has become the holder may have to call.
func (w *waiter) whomToCall() crowd.ToCall {
	switch {
	case !w.callsDormant():
		return crowd.NoneToCall
	case w.audience.dormant:
		return crowd.SomeDormant
	case w.candidate.wait.crowded != nil:
		return crowd.SomeAbsent
	}
	return crowd.NoneToCall
}

// Call calls the waiters that may be next. It returns when one of them listens, when all dormant
// waiters have left, or when its patience is over. Once ctx has ended, PatienceAtEnd is left of it.
// Release comes next in any case. If nobody listens by then, those in line find out by their looks.
// Another program that has the first MostListeners tickets, and doesn't listen, makes each holder
// wait for as long as it may.
func (h *Held) Call(ctx context.Context) {
	patience := h.toCall.Patience(h.cfg.Session.Lease)
	if ctx.Err() != nil {
		patience = min(patience, PatienceAtEnd)
	}
	if patience == 0 {
		return
	}
	ctx, cancel := lateAfter(ctx)
	defer cancel()
	for began, said := time.Now(), false; ; said = true {
		queries := []string{h.listensQuery()}
		if !h.place.has[callLock] {
			queries = append(queries, "SELECT "+h.lockOf(callLock).TrySQL())
		}
		answers, err := h.Session.Ask(ctx, session.Request{SQL: queries})
		if err != nil {
			return
		}
		h.place.has[callLock] = h.place.has[callLock] || answers[1].Is("t") // a waiter's heartbeat may hold the lock for an instant
		if answers[0].Is("t") || time.Since(began) >= patience {
			return
		}
		if !said {
			h.cfg.Log.Info("holding the lock until somebody in line listens", "event", "lingering", "token", h.Token, "rest", patience)
		}
		if !pace.Sleep(ctx, crowd.CallEvery) {
			return
		}
	}
}

// listensQuery is a query that says whether one of the waiters that may be next listens. It looks
// only at the first MostListeners places: a waiter that was pushed back behind them keeps its mark
// until its next look. The order is that of announceEndQuery.
func (h *Held) listensQuery() string {
	enough := "bool_or(listens) IS TRUE"
	if h.toCall == crowd.SomeDormant { // NULL: all have left
		enough = "bool_or(listens) IS NOT FALSE"
	}
	return fmt.Sprintf(`SELECT %s FROM (
	SELECT bool_or(%s) AS listens FROM pg_catalog.pg_lock_status() WHERE %s
	GROUP BY objid ORDER BY objid LIMIT %d) AS first`, enough, advisory.IsMarkSQL, h.cfg.Claim.othersInLinesSQL(), crowd.MostListeners)
}
