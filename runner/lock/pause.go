package lock

import (
	"context"
	"time"

	"github.com/pglead/pglead/runner/ledger"
)

// askPauseEvery is the time between two questions whether a pause is over.
const askPauseEvery = 3 * time.Second

// resumed is called at the end of a pause, during which others may have had the locks. A
// bid that waited for them before goes by the ledger, or by what it hears from now on. Any
// other bid is like a new one, with a first try.
func (b *Bid) resumed(waited bool) {
	clear(b.contested)
	if waited {
		b.contest(b.cfg.Claim.Locks)
	}
}

// waitForResume waits, without a place in line, until no lock of the claim is paused. Nobody
// announces a start to it meanwhile, so it forgets what it has heard.
func (b *Bid) waitForResume(ctx context.Context, why *ledger.PausedError) error {
	b.cfg.Log.Log(ctx, LevelNotice, why.Error()+"; waiting", "event", "paused")
	b.s.StartHeartbeat()
	if err := b.Unlisten(ctx); err != nil {
		return err
	}
	until := Forever
	if !why.Until.IsZero() {
		until = time.Until(why.Until)
	}
	began := time.Now()
	for b.candidate.left() > 0 {
		b.cfg.Observer.SayAlive(b.cfg.AttemptMost())
		timer := time.NewTimer(max(askPauseEvery/30, min(askPauseEvery, b.candidate.left(), until-time.Since(began))))
		select {
		case <-timer.C:
		case <-b.s.Lost():
			timer.Stop()
			return b.s.Err()
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		rows, err := b.s.Query(ctx, ledger.Paused(b.cfg.ledgerLocks(b.cfg.Claim.Locks)))
		if err != nil {
			return b.ledgerError(err)
		}
		if len(rows) == 0 {
			return nil
		}
	}
	return why
}
