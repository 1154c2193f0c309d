package runner

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
)

// worker works on one item after the other: it takes a lock, runs the command, and releases
// the lock together with the next try. After a brief command it does both in parallel
// with the next command.
//
//	each.runWorker       the worker's session; each.pass calls it once for each worker
//	  loop               fetch, runItem, fetch, runItem …
//	    fetch            releases the last lock, and takes the next free item's
//	      pick           the next item that this process doesn't know to be done or under way here
//	      readyGuard     the guard gets ready while the server answers
//	      exchange       the round trip to the server (lock.List.Exchange)
//	      settleOrSkip   settles the lock (lock.Attempt), or skips the item
//	    releaseBeside    releases the last lock while the command runs
//	      fetchAhead     after a brief command: fetches the next lock, too
//	    runItem          runs the command under its lock
//	      runCommand     as for pglead run (run.go)
type worker struct {
	*each
	list  *lock.List
	queue <-chan string
	guard *child.Guard // the last command's, or the next one's; nil before the first
	brief bool         // the last command was brief, so its guard can have another one

	backoff   *pace.Backoff // of the pauses at obstacles; nil if the last try met none
	backedOff time.Duration // the sum of these

	// The loop owns these. While a command runs, releaseBeside's goroutine owns them, until it
	// hands to the loop what it fetched.
	last       *activeItem // its command has ended, and its lock is not released yet; or nil
	pushedBack *activeItem // to be tried again, before those in the queue; or nil
	// ahead is nil unless the worker fetches ahead. It is closed when the command that runs
	// meanwhile has ended.
	ahead <-chan struct{}
}

// fetched is what releaseBeside's goroutine hands to the loop.
type fetched struct {
	next *activeItem // whose lock the worker now has; nil if none was fetched
	err  error
}

// loop works on the items in the queue until the queue is closed.
func (w *worker) loop(ctx context.Context) error {
	defer func() {
		if w.guard.Idle() {
			w.guard.Close()
		}
	}()
	next, err := w.fetch(ctx)
	for next != nil {
		ended := make(chan struct{})
		got := w.releaseBeside(ctx, ended) // releases the last one's lock
		ran, failed := w.runItem(ctx, next)
		close(ended)
		if failed != nil {
			w.end(failed) // also ends the fetch
		}
		ahead := <-got
		w.last, w.ahead, next = ran, nil, ahead.next
		if err = cmp.Or(failed, ahead.err); err != nil {
			w.releaseLast()
			if next != nil {
				w.giveBack(next)
			}
			return err
		}
		if next == nil { // nothing was fetched ahead
			next, err = w.fetch(ctx)
		}
	}
	return err
}

// fetch releases the lock of the last command, if there is one, and takes the lock of the next free
// item. It waits for that item, and returns nil at the end of the list. If it fetches ahead, it
// returns nil once the queue is empty, an item has to be tried later, or the command that runs has
// ended, whose lock has to be released; and it leaves the guard to that command.
func (w *worker) fetch(ctx context.Context) (*activeItem, error) {
	defer w.releaseLast() // also if there is nothing to try for
	for {
		next, err := w.pick(ctx)
		if next == nil {
			return nil, err
		}
		if w.ahead == nil {
			if err := w.readyGuard(); err != nil { // the guard gets ready while the server answers
				w.forget(next)
				return nil, err
			}
		}
		tryErr := w.exchange(next)
		settled, err := w.settleOrSkip(ctx, next, tryErr)
		if settled {
			return next, nil
		}
		w.forget(next)
		if err != nil || w.ahead != nil && w.pushedBack != nil { // pushed back, since it was fetched too early
			return nil, err
		}
	}
}

// exchange releases the lock of the last command, if there is one, and tries for that of the next
// item, unless that is nil. Its error is that of the try.
func (w *worker) exchange(next *activeItem) (tryErr error) {
	var freed, wanted *lock.Attempt
	last := w.last
	if last != nil {
		freed = last.attempt
	}
	if next != nil {
		wanted = next.attempt
	}
	releaseErr, tryErr := w.list.Exchange(freed, wanted)
	if last != nil {
		last.run.afterRelease(releaseErr)
		w.endIfHeld(releaseErr)
		w.forget(last)
		w.last = nil
	}
	return tryErr
}

// pick returns the next item to try, or nil if there is none. It skips items that this process is
// at, and items that it knows to have been run.
func (w *worker) pick(ctx context.Context) (*activeItem, error) {
	for {
		item, contested, ok := w.nextItem(ctx)
		if !ok {
			return nil, nil
		}
		it := w.newItem(item)
		it.contested = contested || w.returning
		switch other := w.active.enter(it); {
		case other == nil:
		case other.name() == it.name(): // the item is twice in the list, and this process is at it
			w.skipDone(it)
			continue
		default: // the keys differ, but their locks have one number
			w.pushedBack = it
			if w.ahead != nil {
				return nil, nil
			}
			w.releaseLast() // which may be the other item's
			select {
			case <-other.left:
			case <-ctx.Done():
			}
			continue
		}
		it.run.cfg.Lock.SayTrying(0)
		it.attempt = w.list.Attempt(it.run.cfg.Lock, it.contested)
		skipped, err := w.skipIfRun(ctx, it)
		if !skipped {
			return it, nil
		}
		w.forget(it)
		if err != nil {
			return nil, err
		}
	}
}

// nextItem is the item that was pushed back or, without that, the next in the queue. If the queue
// is empty, nextItem releases the last command's lock, and waits. If it fetches ahead, it doesn't
// wait, and there is no next item once the command that runs has ended. Nor is there one once ctx
// has ended. contested is that of the item that was pushed back.
func (w *worker) nextItem(ctx context.Context) (item string, contested, ok bool) {
	defer func() { ok = ok && ctx.Err() == nil }()
	select {
	case <-w.ahead:
		return "", false, false
	default:
	}
	if back := w.pushedBack; back != nil {
		w.pushedBack = nil
		return back.item, back.contested, true
	}
	select {
	case item, ok = <-w.queue:
		return item, false, ok
	default:
	}
	w.releaseLast()
	if w.ahead == nil {
		item, ok = <-w.queue
	}
	return item, false, ok
}

// settleOrSkip settles the lock of a granted item: it waits until the previous command is dead, and
// draws the token. Otherwise it skips the item. It doesn't wait ahead of time, since the end of the
// command that runs would be neither recorded nor announced meanwhile: it pushes the item back.
func (w *worker) settleOrSkip(ctx context.Context, it *activeItem, tryErr error) (settled bool, err error) {
	switch {
	case tryErr != nil:
		return false, w.skipIfBarred(ctx, it, tryErr)
	case !it.attempt.Granted():
		w.backoff = nil
		return false, w.skipHeld(ctx, it)
	}
	// By now this process has heard which runs ended between the first check and the grant.
	skipped, err := w.skipIfRun(ctx, it)
	if skipped {
		failed := it.attempt.GiveBack()
		return false, cmp.Or(err, failed)
	}
	settle := it.attempt.Settle
	if w.ahead != nil {
		settle = it.attempt.SettleAtOnce
	}
	held, err := settle(ctx)
	switch {
	case errors.Is(err, lock.ErrDelayed):
		w.pushedBack = it
		return false, nil
	case err != nil:
		return false, w.skipIfBarred(ctx, it, err)
	}
	it.run.held, w.backoff = held, nil
	return true, nil
}

// giveBack gives back a lock under which no command was started.
func (w *worker) giveBack(it *activeItem) {
	if err := it.attempt.GiveBack(); err != nil {
		w.noteLost(it)
		w.endIfHeld(err)
	}
	w.forget(it)
}

// endIfHeld ends the list if a lock could not be freed, and so would stay held for as long as the
// session lasts. If the session was lost, the commands that run find that out.
func (w *worker) endIfHeld(err error) {
	if err != nil && w.list.Session.Err() == nil {
		w.end(err)
	}
}

// runItem runs an item's command. If it returns the item, the caller has to release its lock.
func (w *worker) runItem(ctx context.Context, it *activeItem) (unreleased *activeItem, err error) {
	if err = w.readyGuard(); err != nil {
		w.giveBack(it)
		return nil, err
	}
	r := it.run
	r.guard = w.guard
	w.count(func(t *Tally) { t.Running++ })
	for len(it.signals) > 0 { // they came before there was a command
		<-it.signals
	}
	outcome, err := r.runCommand(ctx)
	w.guard, w.brief = r.guard, r.guard.Idle() // its guard may be a second one, or nil: see startSupervised
	it.logEnd(outcome, err)
	ok, ran := err == nil && !outcome.failed(), r.supervision != nil || mayHaveRun(err)
	if errors.Is(err, unix.E2BIG) { // this item is too long for a command line; others need not be
		ran, err = true, nil
	}
	w.countEnd(ran, ok)
	lost := errors.As(err, new(*LockLostError)) || r.held.Err() != nil
	switch {
	case lost && (err != nil || r.supervision == nil): // the list tells the waiters of all such locks at its end
		w.noteLost(it)
	case lost, !ran:
		r.finish(err)
	default:
		w.ends.add(it.name(), itemEnd{ok: ok, here: true})
		return it, err
	}
	w.forget(it)
	return nil, err
}

// newItem makes the run of an item's command. It has neither lock nor guard yet.
func (w *worker) newItem(item string) *activeItem {
	it := &activeItem{Task: w.cfg.Task(item), item: item, log: w.cfg.Lock.Log.With("item", item), signals: make(chan os.Signal, 64)}
	cfg := w.cfg.Config
	cfg.Command, cfg.Env = it.Command, append(slices.Clone(cfg.Env), it.Env...)
	cfg.Lock.Claim, cfg.Lock.Log, cfg.Lock.Observer = it.claim(), it.log, w.observer(it)
	it.run = &run{
		process: w.process, cfg: cfg, log: it.log, signals: it.signals,
		keepGuard: true, sharesSocket: w.common != nil && w.cfg.Parallel > 1,
	}
	return it
}

// logEnd logs that an item's command failed, or was killed because its lock was lost or its guard
// died. The list itself ends with the error of one command, but others may have been killed, too.
func (it *activeItem) logEnd(outcome Outcome, err error) {
	loss := (*LockLostError)(nil)
	switch {
	case errors.As(err, &loss):
		it.log.Error("the lock was lost: "+loss.What, "event", "failed")
	case mayHaveRun(err):
		it.log.Error(err.Error(), "event", "failed")
	case errors.Is(err, unix.E2BIG):
		it.log.Warn("the command failed: "+err.Error(), "event", "failed")
	case err == nil && outcome.badStatus() && !outcome.Asked.Has(ByTimeout|ByStepDown): // these have already been logged
		it.log.Warn("the command failed: "+describeStatus(outcome.Status), "event", "failed")
	}
}

// countEnd counts an item that is not under way any more.
func (w *worker) countEnd(ran, ok bool) {
	w.count(func(t *Tally) {
		t.Running--
		if ran {
			t.Ran++
		}
		if ran && !ok {
			t.Failed++
		}
	})
}

// readyGuard makes sure that there is a guard for the next command.
func (w *worker) readyGuard() (err error) {
	if !w.guard.Idle() {
		w.guard, err = w.process.newGuard(w.list.Session)
	}
	return err
}

// releaseLast releases the lock of a command that has ended, if there is one.
func (w *worker) releaseLast() {
	if w.last != nil {
		_ = w.exchange(nil) // it tries for nothing
	}
}

// noteLost notes a lock that was lost. Its command is dead.
func (w *worker) noteLost(it *activeItem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lostLocks = append(w.lostLocks, it.run.held)
}

// forget ends the attempt at an item, which is free for another worker here from then on.
func (w *worker) forget(it *activeItem) {
	it.attempt.Close()
	w.active.leave(it)
}
