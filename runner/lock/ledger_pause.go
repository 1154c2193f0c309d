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

// resumed is called at the end of a pause, during which others may have had the locks. A
// bid that waited before the pause goes by the ledger, or by what it hears from now on. Any
// other bid is like a new one, with a first try.
func (w *waiter) resumed() {
	clear(w.knowledge.contested)
	if w.returning {
		w.knowledge.contest(w.cfg.Claim.locks())
	}
}

// waitForResume waits, without a place in line, until no lock of the claim is paused. Meanwhile
// nobody announces a start to it, so it forgets what it has heard.
func (w *waiter) waitForResume(ctx context.Context, why *ledger.PausedError) error {
	w.cfg.Log.Log(ctx, LevelNotice, why.Error()+"; waiting", "event", "paused")
	w.s.StartHeartbeat()
	if err := w.Unlisten(ctx); err != nil {
		return err
	}
	left := askPauseEvery
	if !why.Until.IsZero() {
		left = time.Until(why.Until) // by this host's clock, until the server has answered
	}
	for w.candidate.timeLeft() > 0 {
		w.cfg.Observer.SayAlive(w.cfg.AttemptMost())
		if err := w.sleep(ctx, min(max(left, askPauseEvery/30), askPauseEvery, w.candidate.timeLeft()), nil); err != nil {
			return err
		}
		rows, err := w.s.Query(ctx, ledger.PausedQuery(w.cfg.ledgerLocks(w.cfg.Claim.locks()), w.s.AsIsSQL()))
		if w.lostLedger(ctx, err) {
			return w.giveUpLedger()
		}
		if err != nil {
			return ledgerError(err)
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
func (b *Bid) namePaused(ctx context.Context, why *ledger.PausedError) {
	if len(b.cfg.Claim.Keys) < 2 {
		return
	}
	locks := b.cfg.ledgerLocks(b.cfg.Claim.locks())
	var queries []string
	for _, l := range locks {
		queries = append(queries, ledger.PausedQuery([]ledger.Lock{l}, b.s.AsIsSQL()))
	}
	answers, err := b.s.Ask(ctx, session.Request{SQL: queries})
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

// PausedAmong asks the ledger whether each of these claims is paused. Each has to be for one lock.
func PausedAmong(ctx context.Context, s *session.Session, claims []Claim) ([]bool, error) {
	var locks []ledger.Lock
	for _, c := range claims {
		locks = append(locks, ledger.Lock{ID: c.IDs[0], Key: c.Key(0)})
	}
	rows, err := s.Query(ctx, ledger.PausedAmongQuery(locks))
	if err != nil {
		return nil, err
	}
	return ledger.ParsePausedAmong(rows, len(locks))
}
