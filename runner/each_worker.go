package runner

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
)

// worker works on one item after the other: it takes a lock, runs the command, and releases
// the lock together with the next try. After a brief command it does both in parallel
// with the next command.
//
//	each.runWorker       the worker's session; each.pass calls it once for each worker
//	  loop               releaseAndFetch, runItem, releaseAndFetch, runItem …
//	    releaseAndFetch  releases the last lock, and takes the next free item's
//	      fetchQueued    the same, but without waiting for an item in the queue
//	        pick         the next item that this process doesn't know to be done or under way here
//	        readyGuard   the guard gets ready while the server answers
//	        exchange     the round trip to the server (lock.List.Exchange)
//	        settleOrSkip settles the lock (lock.Attempt.Settle), or skips the item
//	    releaseBeside    releases the last lock while the command runs
//	      fetchAhead     after a brief command: fetches the next lock, too (fetchQueued)
//	    runItem          runs the command under its lock
//	      runCommand     as for pglead run (run.go)
type worker struct {
	*each
	list  *lock.List
	queue <-chan string
	guard *child.Guard // the last command's, or the next one's; nil before the first
	brief bool         // the last command was brief, so its guard can have another one
}

// fetched is what a fetch ends with. Without any of these, no item in the queue was free.
type fetched struct {
	next  *activeItem // whose lock the worker now has
	retry *string     // an item that was fetched too early: it comes before those in the queue
	err   error
}

// loop works on the items in the queue until the queue is closed.
func (w *worker) loop(ctx context.Context) error {
	defer func() {
		if w.guard.Idle() {
			w.guard.Close()
		}
	}()
	next, err := w.releaseAndFetch(ctx, nil, nil)
	var last *activeItem
	for next != nil {
		got := w.releaseBeside(ctx, last) // releases the last one's lock
		ran, failed := w.runItem(ctx, next)
		if failed != nil {
			w.cancel(failed) // also ends the fetch
		}
		ahead := <-got
		last, next = ran, ahead.next
		if err = cmp.Or(failed, ahead.err); err != nil {
			w.releaseLast(last)
			if next != nil {
				w.giveBack(next)
			}
			return err
		}
		if next == nil { // nothing was fetched ahead
			next, err = w.releaseAndFetch(ctx, last, ahead.retry)
			last = nil
		}
	}
	return err
}

// releaseAndFetch releases the lock of the last command, if there is one, and takes the lock of
// the next free item, for which it waits. It begins with the item first, or else with the queue. It
// returns nil at the end of the list.
func (w *worker) releaseAndFetch(ctx context.Context, last *activeItem, first *string) (*activeItem, error) {
	for ; ; last = nil { // its lock is free after the first round
		got := w.fetchQueued(ctx, last, first, false)
		if got.next != nil || got.err != nil {
			return got.next, got.err
		}
		if first = w.awaitItem(ctx, got.retry); first == nil {
			return nil, nil
		}
	}
}

// awaitItem is the item first or, without that, the next in the queue, for which it waits. It returns
// nil at the end of the list.
func (w *worker) awaitItem(ctx context.Context, first *string) *string {
	if first == nil {
		if item, ok := <-w.queue; ok {
			first = &item
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return first
}

// fetchQueued is releaseAndFetch for the items that are in the queue by now: if none of them is
// free, it returns none. If it fetches ahead, the command that runs has the guard.
func (w *worker) fetchQueued(ctx context.Context, last *activeItem, first *string, ahead bool) fetched {
	for ; ; last, first = nil, nil { // its lock is free after the first round
		got := w.pick(ctx, first)
		if got.next != nil && !ahead {
			if err := w.readyGuard(); err != nil { // the guard gets ready while the server answers
				w.forget(got.next)
				got = fetched{err: err}
			}
		}
		next := got.next
		if next == nil {
			w.releaseLast(last)
			return got
		}
		tried := w.exchange(last, next)
		if got = w.settleOrSkip(ctx, next, tried, ahead); got.next != nil {
			return got
		}
		w.forget(next)
		if got.retry != nil || got.err != nil {
			return got
		}
	}
}

// exchange releases the lock of the last command, and tries for that of the next item. Either may be
// nil. Its error is that of the try.
func (w *worker) exchange(last, next *activeItem) (tried error) {
	var freed, wanted *lock.Attempt
	if last != nil {
		freed = last.attempt
	}
	if next != nil {
		wanted = next.attempt
	}
	released, tried := w.list.Exchange(freed, wanted)
	if last != nil {
		last.run.afterRelease(released)
		w.forget(last)
	}
	return tried
}

// pick returns the next item to try, or none if none is queued yet. It begins with the item first,
// if there is one. It skips items that this process is at, and items that it knows to have been
// run.
func (w *worker) pick(ctx context.Context, first *string) fetched {
	for ; ctx.Err() == nil; first = nil {
		item, ok := w.nextItem(first)
		if !ok {
			return fetched{}
		}
		it := &activeItem{
			Task: w.cfg.Task(item), item: item, log: w.cfg.Lock.Log.With("item", item), worker: w, signals: make(chan os.Signal, 64),
		}
		switch other := w.active.enter(it); {
		case other == nil:
		case other.name() == it.name(): // the item is twice in the list, and this process is at it
			w.skip(it, alreadyDone)
			continue
		case other.worker == w: // its lock is free once the last command has ended
			return fetched{retry: &item}
		default:
			w.skip(it, heldElsewhere)
			continue
		}
		cfg := w.cfg.Lock
		cfg.Claim, cfg.Log, cfg.Observer = it.claim(), it.log, w.observer(it.ID)
		cfg.SayTrying()
		it.attempt = w.list.Attempt(cfg, w.returning)
		skipped, err := w.skipIfRun(ctx, it)
		if !skipped {
			return fetched{next: it}
		}
		w.forget(it)
		if err != nil {
			return fetched{err: err}
		}
	}
	return fetched{}
}

// nextItem is the item first or, without that, the next in the queue, if there is one by now.
func (w *worker) nextItem(first *string) (item string, ok bool) {
	if first != nil {
		return *first, true
	}
	select {
	case item, ok = <-w.queue:
	default:
	}
	return item, ok
}

// settleOrSkip waits until the previous command of a granted item is dead, and draws the token, or
// it skips the item. tried is the error of the try. If it would wait ahead of time, the end of the
// command that runs would be neither recorded nor announced meanwhile: then the item is tried again
// after it.
func (w *worker) settleOrSkip(ctx context.Context, it *activeItem, tried error, ahead bool) fetched {
	switch {
	case tried != nil:
		return fetched{err: w.skipIfBarred(it, tried)}
	case !it.attempt.Granted():
		return fetched{err: w.skipHeld(ctx, it)}
	}
	// By now this process has heard which runs ended between the first check and the grant.
	skipped, err := w.skipIfRun(ctx, it)
	if skipped {
		failed := it.attempt.GiveBack()
		return fetched{err: cmp.Or(err, failed)}
	}
	if ahead && it.attempt.Delayed() {
		return fetched{retry: &it.item, err: it.attempt.PutOff()}
	}
	held, err := it.attempt.Settle(ctx)
	if err == nil {
		it.run = w.newRun(it, held)
		return fetched{next: it}
	}
	return fetched{err: w.skipIfBarred(it, err)}
}

// giveBack gives back a lock under which no command was started.
func (w *worker) giveBack(it *activeItem) {
	if it.attempt.GiveBack() != nil {
		w.noteLost(it)
	}
	w.forget(it)
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
	w.guard, w.brief = r.guard, r.guard.Idle() // its guard may be a second one, or nil: see startCommand
	it.logEnd(outcome, err)
	ok := err == nil && !outcome.failed()
	w.countEnd(r.child != nil, ok)
	lost := errors.As(err, new(*LockLostError)) || r.held.Err() != nil
	switch {
	case lost && err != nil: // the list tells the waiters of all such locks at its end
		w.noteLost(it)
	case lost, r.child == nil:
		r.finish(err)
	default:
		w.ends.add(it.name(), itemEnd{ok: ok, here: true})
		return it, err
	}
	w.forget(it)
	return nil, err
}

// newRun makes the run of an item's command. It has no guard yet.
func (w *worker) newRun(it *activeItem, held *lock.Held) *run {
	cfg := w.cfg.Config
	cfg.Lock.Claim.Keys, cfg.Command, cfg.Env = []string{it.Key}, it.Command, append(slices.Clone(cfg.Env), it.Env...)
	cfg.Lock.Observer = w.observer(it.ID)
	return &run{
		process: w.process, cfg: cfg, log: it.log, signals: it.signals, held: held,
		keepsGuard: true, sharesSession: w.common != nil && w.cfg.Parallel > 1,
	}
}

// logEnd logs that an item's command failed, or was killed because its lock was lost. The list
// itself ends with the error of one command, but others may have been killed, too.
func (it *activeItem) logEnd(outcome Outcome, err error) {
	lost := (*LockLostError)(nil)
	switch {
	case errors.As(err, &lost):
		it.log.Error("the lock was lost: "+lost.What, "event", "failed")
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
func (w *worker) releaseLast(last *activeItem) {
	if last != nil {
		_ = w.exchange(last, nil) // it tries for nothing
	}
}

// noteLost notes a lock that was lost. Its command is dead.
func (w *worker) noteLost(it *activeItem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = append(w.lost, it.run.held)
}

// forget ends the work on an item, for now or for good.
func (w *worker) forget(it *activeItem) {
	it.attempt.Close()
	w.active.leave(it)
}

// If the previous command was brief, the worker fetches ahead, in parallel with the next one:
//
//	command   1 ────────┤2 ────────┤3 ────────┤
//	server              │fetch 3   │free 2,   │free 3,
//	                    │          │fetch 4   │fetch 5
//
// Otherwise it takes the next lock between two commands. To fetch ahead saves 16 % of the time for
// each `true`, and still 9 % with -P 4. In a later pass it doesn't: what was fetched too early is
// given back, and its next try, which knows nothing of what was heard before, would wait for the
// lock-delay.

// aheadMost is how long a lock that was fetched ahead is kept while the worker is busy: others skip
// the item meanwhile. It is as long as a brief command may last, since a worker fetches ahead only
// after a brief command, and expects another (see child.Guard.Idle).
const aheadMost = 20 * time.Millisecond

// releaseBeside releases the last command's lock, beside the command that starts next. If the last
// command was brief, it fetches the next item's lock, too, in the first pass. The caller has to
// receive what it got.
func (w *worker) releaseBeside(ctx context.Context, last *activeItem) <-chan fetched {
	got := make(chan fetched)
	ahead := w.brief && !w.returning && !w.cfg.Lock.Session.Transaction // with transactions a worker has one lock at a time
	go func() {
		if ahead {
			w.fetchAhead(ctx, last, got)
			return
		}
		w.releaseLast(last)
		got <- fetched{}
	}()
	return got
}

// fetchAhead fetches the next item's lock, and gives it back if the command doesn't end
// within aheadMost.
func (w *worker) fetchAhead(ctx context.Context, last *activeItem, got chan<- fetched) {
	ahead := w.fetchQueued(ctx, last, nil, true)
	if next := ahead.next; next != nil {
		wanted := time.NewTimer(aheadMost)
		defer wanted.Stop()
		select {
		case got <- ahead:
			return
		case <-wanted.C:
		case <-ctx.Done():
		}
		w.giveBack(next)
		ahead = fetched{retry: &next.item}
	}
	got <- ahead
}
