package lock

import (
	"context"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/ledger"
)

// Item is one attempt at an item of a list. At most one attempt at an item is under way.
type Item struct {
	list       *List
	bid        *bid
	held       *Held                 // once it has settled
	renewed    chan boottime.Instant // the session's latest deadline
	checkTimer *time.Timer           // to checkAfter
	kept       bool                  // the bid listens until the next attempt
	// Under the list's mu:
	checks bool          // the heartbeat checks for requests to step down
	delay  time.Duration // for which the lock is held before the command may start
}

// Item begins an attempt at the item whose lock cfg's Claim names. If the last attempt has kept
// listening, this one knows what was heard meanwhile. Otherwise returning says that others may have
// had the lock since an earlier attempt of the caller's.
func (l *List) Item(cfg Config, returning bool) *Item {
	i := &Item{list: l, renewed: make(chan boottime.Instant, 1)}
	id := cfg.Claim.IDs[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	if i.bid = l.kept[id]; i.bid == nil {
		cfg.ofList = true
		i.bid = newBid(l.Session, cfg, returning, nil)
	}
	i.bid.item = i
	l.underWay[id] = i
	return i
}

func (i *Item) id() lockkey.ID { return i.bid.cfg.Claim.IDs[0] }

// Granted says whether the list has the lock.
func (i *Item) Granted() bool { return i.bid.complete() }

// Delayed says whether Settle will hold the lock, which was granted, for some time without a command.
func (i *Item) Delayed() bool { return i.bid.got.verdict.Delay > 0 }

// Settle prepares a lock that was granted for the start of its command (bid.settle). If that fails,
// the lock is free: others still work in this session.
func (i *Item) Settle(ctx context.Context) (*Held, error) {
	h, err := i.bid.settle(ctx)
	if err != nil && i.list.Session.Err() == nil {
		if failed := i.bid.giveBack(context.WithoutCancel(ctx)); failed != nil {
			err = failed
		}
		i.show(0)
	}
	if err != nil {
		return nil, err
	}
	i.held, h.renewed = h, i.renewed
	i.checkTimer = time.AfterFunc(checkAfter, i.checkForStepDown)
	return h, nil
}

// show notes how long the lock is held before the command may start, and describes the session
// anew.
func (i *Item) show(delay time.Duration) {
	i.list.mu.Lock()
	defer i.list.mu.Unlock()
	i.delay = delay
	i.list.showKeys()
}

// checkForStepDown makes the heartbeat look for requests that the item's command step down, until
// the attempt ends.
func (i *Item) checkForStepDown() {
	l := i.list
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.underWay[i.id()] == i {
		i.checks = true
		l.checkForStepDowns()
		l.Session.BeatAt(boottime.Now()) // the heartbeat's comment shows the keys
	}
}

// KeepListening is for an item to which the list comes back: the session listens until then, and so
// knows whether the last holder is dead. If it listens to too many already, or the server rejects
// that, the next attempt waits for the lock-delay. Without a wait, or through a pooler, nothing is
// heard.
func (i *Item) KeepListening(ctx context.Context) error {
	if i.bid.cfg.Wait == 0 || !i.bid.cfg.announces() {
		return nil
	}
	if i.kept = i.list.keep(i); i.kept {
		err := i.bid.listen(ctx)
		if err == nil {
			return nil
		}
		i.kept = false // it may not listen
		if err := i.bid.cfg.freeRejected(ctx, i.list.Session, err, []advisory.Lock{advisory.CommonMarkOf(i.id())}); err != nil {
			return err
		}
	}
	return i.bid.endArrival(ctx)
}

// keep keeps the item's bid if there is room for it, and says whether it did.
func (l *List) keep(i *Item) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept[i.id()] == nil && len(l.kept) >= mostKept {
		return false
	}
	l.kept[i.id()] = i.bid
	return true
}

// GiveBack frees a lock under which no command was started, and ends the attempt.
func (i *Item) GiveBack() error {
	err := i.giveBack(context.Background())
	i.Close()
	i.show(0) // without this item's key
	return err
}

func (i *Item) giveBack(ctx context.Context) error {
	if i.held == nil {
		return i.bid.giveBack(ctx)
	}
	i.held.SetEnd(ledger.End{At: time.Now(), Outcome: ledger.Stopped})
	if err := i.held.Err(); err != nil {
		return err
	}
	return i.held.Release(ctx)
}

// Close ends the attempt. The lock is free by now, or was lost. Unless KeepListening was called,
// the session stops listening for the item. A second Close, or one after GiveBack, does nothing if
// no other attempt at the item has begun.
func (i *Item) Close() {
	if i.checkTimer != nil {
		i.checkTimer.Stop()
	}
	if i.leave(); !i.kept && i.bid.listens() {
		_ = i.bid.unlisten(context.Background()) // at worst the session still hears what it ignores
	}
}

// leave takes the attempt off the list.
func (i *Item) leave() {
	l := i.list
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.underWay, i.id())
	if i.checks {
		i.checks = false
		l.checkForStepDowns()
	}
	if !i.kept {
		delete(l.kept, i.id())
	}
}
