package lock

import (
	"context"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// A waiter that finds one of its locks paused in the ledger leaves the line, asks every few seconds
// whether the pause is over, and then stands in line again.

// askPauseEvery is how often the ledger is asked whether a pause is over.
const askPauseEvery = 3 * time.Second

// waitForResume waits, without a place in line, until no lock of the claim is paused. Meanwhile
// others may have the locks, and nobody announces a start to it, so it forgets what it has heard.
// If it waited before the pause, it then goes by the ledger, or by what it hears from then on;
// otherwise it is like a new waiter, with a first try.
func (w *waiter) waitForResume(ctx context.Context, why *ledger.PausedError) error {
	if !w.listener.evidence.Untouched() { // others may have had any of them
		w.listener.evidence.Contest(w.cfg.Claim.IDs...)
	}
	w.Session.StartHeartbeat()
	if err := w.listener.unlisten(ctx); err != nil {
		return err
	}
	left := askPauseEvery
	if why.Until.Before(ledger.Endless()) {
		left = time.Until(why.Until) // by this host's clock, until the server has answered
	}
	for w.candidate.timeLeft() > 0 {
		w.cfg.SayTrying(0)
		w.cfg.Observer.away(why)
		if err := w.sleep(ctx, min(max(left, askPauseEvery/30), askPauseEvery, w.candidate.timeLeft()), nil); err != nil {
			return err
		}
		rows, err := w.Session.Query(ctx, ledger.PausedQuery(w.cfg.ledgerLocks(w.cfg.Claim.locks()), w.Session.AsIsSQL()))
		if w.lostLedger(ctx, err) {
			return w.giveUpLedger()
		}
		if err != nil {
			return w.ledgerError(err)
		}
		var paused *ledger.PausedError
		if paused, left, err = ledger.ParsePaused(rows); paused == nil || err != nil {
			return err
		}
		why = paused // another pause may have taken its place
	}
	w.namePaused(ctx, why)
	return why
}

// namePaused makes a refusal tell which of several keys is paused, if the server says so.
func (b *bid) namePaused(ctx context.Context, why *ledger.PausedError) {
	if len(b.cfg.Claim.Keys) < 2 {
		return
	}
	locks := b.cfg.ledgerLocks(b.cfg.Claim.locks())
	var queries []string
	for _, l := range locks {
		queries = append(queries, ledger.PausedQuery([]ledger.Lock{l}, b.Session.AsIsSQL()))
	}
	answers, err := b.Session.Ask(ctx, session.Request{SQL: queries})
	if err != nil {
		return
	}
	for i, rows := range answers {
		if paused, _, err := ledger.ParsePaused(rows); err == nil && paused != nil {
			*why = *paused
			why.Key = locks[i].Key
			return
		}
	}
}
