package runner

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// An item of a list is skipped if it can't be run now, or need not be run. If there is time, the
// list comes back to those that others hold or that are paused.

// skipReason is why an item is skipped.
type skipReason int

const (
	heldElsewhere skipReason = iota
	paused
	alreadyDone // and not to be run again
)

// skip counts an item that is not run now. If there is time, this process comes back to it, unless
// the item is done.
func (e *each) skip(it *activeItem, why skipReason) {
	e.count(func(t *Tally) {
		to := &e.comeBack
		switch why {
		case heldElsewhere:
			t.Held++
		case paused:
			t.Paused++
			to = &e.paused
		case alreadyDone:
			t.Done++
			return
		}
		if e.cfg.Lock.Wait > 0 {
			*to = append(*to, it.item)
		}
	})
}

// skipHeld skips an item that is held elsewhere, or has failed there. If this process may come back
// to it, the session listens meanwhile.
func (e *each) skipHeld(ctx context.Context, it *activeItem) error {
	e.skip(it, heldElsewhere)
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
	e.skip(it, alreadyDone)
	return true, nil
}

// skipIfBarred skips an item if the ledger keeps it from starting, or if there is time to wait until
// an obstacle passes; otherwise it returns the error.
func (e *each) skipIfBarred(it *activeItem, err error) error {
	switch {
	case errors.As(err, new(*ledger.DoneError)):
		it.log.Info(err.Error(), "event", "done")
		e.skip(it, alreadyDone)
		return nil
	case errors.As(err, new(*ledger.PausedError)):
		e.warnOnce(it, "paused", err.Error())
		e.skip(it, paused)
		return nil
	case errors.As(err, new(*ledger.FencedError)):
		e.warnOnce(it, "ledger", withHint(err))
	case !session.Passing(err) || it.worker.list.Session.Err() != nil || e.cfg.Lock.Wait == 0:
		return err
	case errors.As(err, new(*lock.LedgerError)):
		e.warnOnce(it, "ledger", withHint(err))
	default:
		e.warnOnce(it, "waiting", "the lock could not be taken, and the list comes back to the item: "+withHint(err))
	}
	e.skip(it, heldElsewhere)
	return nil
}

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
