package runner

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// An item of a list is skipped if it can't be run now, or need not be run. If there is time, the
// list comes back to those that others hold or that are paused.

// skip counts an item that is not run now, in one of the tally's numbers. If there is time, this
// process comes back to it: it is added to later, unless that is nil.
func (e *each) skip(it *activeItem, number *int, later *[]string) {
	e.count(func(*Tally) {
		*number++
		if later != nil && e.cfg.Lock.Wait > 0 {
			*later = append(*later, it.item)
		}
	})
}

// skipDone skips an item that is done, and not to be run again.
func (e *each) skipDone(it *activeItem) { e.skip(it, &e.tally.Done, nil) }

// skipHeld skips an item that is held elsewhere, or has failed there. If this process may come back
// to it, the session listens meanwhile.
func (e *each) skipHeld(ctx context.Context, it *activeItem) error {
	e.skip(it, &e.tally.Held, &e.comeBack)
	return it.attempt.KeepListening(ctx)
}

// skipIfRun skips an item that was run since this session began, and says whether it did.
// If that run failed elsewhere, this process comes back to the item, if there is time.
func (e *each) skipIfRun(ctx context.Context, it *activeItem) (skipped bool, err error) {
	end, ended := e.ends.of(it.name())
	failedElsewhere := ended && !end.ok && !end.here
	switch {
	case !ended || failedElsewhere && e.returning:
		return false, nil
	case failedElsewhere && e.cfg.Lock.Wait > 0:
		return true, e.skipHeld(ctx, it)
	}
	e.skipDone(it)
	return true, nil
}

// skipIfBarred skips an item if the ledger keeps it from starting, or if there is time to wait until
// an obstacle passes; otherwise it returns the error.
func (w *worker) skipIfBarred(ctx context.Context, it *activeItem, err error) error {
	switch {
	case errors.As(err, new(*ledger.DoneError)):
		it.log.Info(err.Error(), "event", "done")
		w.skipDone(it)
	case errors.As(err, new(*ledger.PausedError)):
		w.warnOnce(it, "paused", err.Error())
		w.skip(it, &w.tally.Paused, &w.paused)
	case errors.As(err, new(*ledger.FencedError)): // by this key's last run alone
		w.warnOnce(it, "ledger", withHint(err))
		w.skip(it, &w.tally.Held, &w.comeBack)
	case !session.Passing(err) || w.list.Session.Err() != nil:
		return err
	default:
		return w.comeBackTo(ctx, it, err)
	}
	return nil
}

// comeBackTo has the list come back to an item after an obstacle that may pass or, without --wait,
// returns that. It warns of the first of several obstacles in a row. The item is the next one again,
// after a pause that grows; after a long one, or when the pauses come to --wait, a later pass has it.
// If the worker fetches ahead there is no pause, but the fetch is over: the end of the command that
// runs could be neither recorded nor announced meanwhile.
//
// The ledger will have the runs of others. After any other obstacle the start takes evidence, since
// others may have had the lock before the next try.
func (w *worker) comeBackTo(ctx context.Context, it *activeItem, obstacle error) error {
	wait := w.cfg.Lock.Wait
	if wait == 0 {
		return obstacle
	}
	event, text := "ledger", withHint(obstacle)
	if !errors.As(obstacle, new(*lock.LedgerError)) {
		it.contested = true
		event, text = "waiting", "the lock could not be taken, and the list comes back to the item: "+text
	}
	if w.backoff == nil {
		w.backoff, w.backedOff = crowd.AwayBackoff(), 0
		w.warnOnce(it, event, text)
	} else {
		it.log.Info(text, "event", event)
	}
	if w.ahead == nil {
		least, most := w.backoff.Halves()
		rest := min(pace.Between(least, most), wait-w.backedOff)
		w.backedOff += rest
		w.pause(ctx, it, rest)
		if most >= longPause || w.backedOff >= wait {
			w.skip(it, &w.tally.Hindered, &w.comeBack)
			return nil
		}
	}
	w.pushedBack = it
	return nil
}

// pause waits, unless the session or the list ends.
func (w *worker) pause(ctx context.Context, it *activeItem, rest time.Duration) {
	it.run.cfg.Lock.SayTrying(rest)
	select {
	case <-time.After(rest):
	case <-w.list.Session.Done():
	case <-ctx.Done():
	}
}

// longPause is long enough for an item to be skipped. The pauses before sum up to some seconds.
const longPause = 3 * time.Second

// warnOnce warns of what is in the item's way. After that it only informs of such an event.
func (e *each) warnOnce(it *activeItem, event, text string) {
	level, warning := slog.LevelWarn, [2]string{it.item, event}
	e.mu.Lock()
	if e.warned[warning] {
		level = slog.LevelInfo
	}
	e.warned[warning] = true
	e.mu.Unlock()
	it.log.Log(context.Background(), level, text, "event", event)
}

// withHint is an error and its hint in one line.
func withHint(err error) string {
	if e := (*session.Error)(nil); errors.As(err, &e) && e.Hint != "" {
		return err.Error() + "; " + e.Hint
	}
	return err.Error()
}

// mostAsked limits the locks in one question to the ledger.
const mostAsked = 1000

// resumed returns the items whose pause is over. The others stay paused, since a try would draw a
// token, which waits for the server's disk. If the ledger doesn't answer, all items are tried, and
// the tries say why.
func (e *each) resumed(ctx context.Context) (over []string) {
	items := e.paused
	e.paused = nil
	if len(items) == 0 {
		return nil
	}
	list, leave, err := e.workingList(ctx)
	if err != nil {
		return items
	}
	defer leave()
	for some := range slices.Chunk(items, mostAsked) {
		var claims []lock.Claim
		for _, item := range some {
			claims = append(claims, e.cfg.Task(item).claim())
		}
		still, err := list.Paused(ctx, claims)
		for i, item := range some {
			if err == nil && still[i] {
				e.paused = append(e.paused, item)
			} else {
				over = append(over, item)
			}
		}
	}
	e.count(func(t *Tally) { t.Paused += len(e.paused) })
	return over
}
