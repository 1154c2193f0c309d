package lock

import (
	"context"
	"errors"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// Attempt is one attempt at an item of a list. At most one attempt at an item is under way.
type Attempt struct {
	list       *List
	bid        *bid
	held       *Held                 // once it has settled
	renewed    chan boottime.Instant // the session's latest deadline
	checkTimer *time.Timer           // to checkAfter
	kept       bool                  // the session listens until the next attempt
	// Under the list's mu:
	checks bool          // the heartbeat checks for requests to step down
	delay  time.Duration // for which the lock is held before the command may start
}

// Attempt begins an attempt at the item whose lock cfg's Claim names. If the last attempt has kept
// listening, this one knows what was heard meanwhile. Otherwise contested says that others may have
// had the lock since an earlier attempt of the caller's.
func (l *List) Attempt(cfg Config, contested bool) *Attempt {
	a := &Attempt{list: l, renewed: make(chan boottime.Instant, 1)}
	id := cfg.Claim.IDs[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	cfg.ofList = true
	heard := l.kept[id]
	if heard == nil {
		heard = newListener(l.Session, &cfg, contested)
	}
	heard.claim = cfg.Claim // it may have been kept for another key whose lock has this number
	a.bid = newBid(heard, cfg, nil)
	a.bid.show = func(d describe.Description) { a.show(d.Delay) } // the session has many bids
	l.underWay[id] = a
	return a
}

func (a *Attempt) id() lockkey.ID { return a.bid.cfg.Claim.IDs[0] }

// Granted says whether the list has the lock.
func (a *Attempt) Granted() bool { return a.bid.complete() }

// Settle prepares a lock that was granted for the start of its command (bid.settle). If that fails,
// the lock is free: others still work in this session.
func (a *Attempt) Settle(ctx context.Context) (*Held, error) {
	h, err := a.bid.settle(ctx)
	if err != nil && a.list.Session.Err() == nil {
		if failed := a.bid.giveBack(context.WithoutCancel(ctx)); failed != nil {
			err = failed
		}
		a.show(0)
	}
	if err != nil {
		return nil, err
	}
	a.held, h.renewed = h, a.renewed
	a.checkTimer = time.AfterFunc(checkAfter, a.checkForStepDown)
	return h, nil
}

// SettleAtOnce is Settle if the command may start at once. Otherwise it returns ErrDelayed, and the
// lock is free. If the list listens to what happens to that, it goes on, so that the next attempt
// knows what this one knew.
func (a *Attempt) SettleAtOnce(ctx context.Context) (*Held, error) {
	a.bid.mustNotWait = true
	h, err := a.Settle(ctx)
	if errors.Is(err, ErrDelayed) {
		a.kept = a.bid.listener.on
	}
	return h, err
}

// ErrDelayed says that a lock would have to be held without a command for some time.
var ErrDelayed = errors.New("the start of the command has to be delayed")

// show notes how long the lock is held before the command may start, and describes the session
// anew.
func (a *Attempt) show(delay time.Duration) {
	a.list.mu.Lock()
	defer a.list.mu.Unlock()
	a.delay = delay
	a.list.showKeys()
}

// checkForStepDown makes the heartbeat look for requests that the item's command step down, until
// the attempt ends.
func (a *Attempt) checkForStepDown() {
	l := a.list
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.underWay[a.id()] == a {
		a.checks = true
		l.checkForStepDowns()
		l.Session.BeatAt(boottime.Now()) // the heartbeat's comment shows the keys
	}
}

// KeepListening is for an item to which the list comes back: the session listens until then, and so
// knows whether the last holder is dead. If it listens to too many already, or the server rejects
// that, the next attempt waits for the lock-delay. Without a wait, or through a pooler, nothing is
// heard.
func (a *Attempt) KeepListening(ctx context.Context) error {
	if a.bid.cfg.Wait == 0 || !a.bid.cfg.announces() {
		return nil
	}
	ctx, cancel := untilAnswered(ctx) // so that Close knows which marks to free
	defer cancel()
	if a.kept = a.list.keep(a); a.kept {
		err := a.bid.listen(ctx)
		if err == nil {
			return nil
		}
		a.kept = false // it may not listen
		if session.AnsweredError(err) != nil {
			err = a.bid.cfg.freeUnused(ctx, a.list.Session, []advisory.Lock{advisory.CommonMarkOf(a.id())})
		}
		if err != nil {
			return err
		}
	}
	return a.bid.endArrival(ctx)
}

// keep keeps what is heard of the item if there is room for it, and says whether it did.
func (l *List) keep(a *Attempt) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept[a.id()] == nil && len(l.kept) >= mostKept {
		return false
	}
	l.kept[a.id()] = a.bid.listener
	return true
}

// GiveBack frees a lock under which no command was started.
func (a *Attempt) GiveBack() error {
	ctx := context.Background()
	if a.held == nil {
		return a.bid.giveBack(ctx)
	}
	a.held.SetEnd(ledger.End{At: time.Now(), Outcome: ledger.Stopped})
	if err := a.held.Err(); err != nil {
		return err
	}
	return a.held.Release(ctx)
}

// Close ends the attempt. The lock is free by now, or was lost. The session stops listening for the
// item, unless KeepListening was called, or SettleAtOnce put the start off.
func (a *Attempt) Close() {
	if a.checkTimer != nil {
		a.checkTimer.Stop()
	}
	if a.leave(); !a.kept && a.bid.listener.on {
		_ = a.bid.listener.unlisten(context.Background()) // at worst the session still hears what it ignores
	}
}

// leave takes the attempt off the list.
func (a *Attempt) leave() {
	l := a.list
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.underWay, a.id())
	if a.checks {
		a.checks = false
		l.checkForStepDowns()
	}
	if !a.kept {
		delete(l.kept, a.id())
	}
	l.showKeys() // without this item's
}
