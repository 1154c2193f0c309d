package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// wait is the loop in line: it waits for news or the next due time, decides, and acts, until
// something is granted or the time is up. Of several locks it gets the next one: Try takes the
// rest.
func (w *waiter) wait(ctx context.Context) (granted bool, err error) {
	if err := w.join(ctx); err != nil {
		return false, err
	}
	defer w.unwatch()
	if err := w.report(ctx); err != nil {
		return false, err
	}
	for {
		rest := w.candidate.left()
		if rest <= 0 {
			return false, nil
		}
		if err := w.awaitNews(ctx, rest); err != nil {
			return false, err
		}
		if w.called.Swap(false) {
			w.turn.lookAt = time.Now()
		}
		w.turn.decide(w.events(), w.knowledge.trusts, w.watches())
		w.heedWatch()
		if !w.turn.triesBy(time.Now()) { // w.takeTurn verifies by itself
			if err := w.knowledge.verify(ctx); err != nil {
				return false, err
			}
		}
		if granted, err := w.act(ctx); err != nil || granted {
			return granted, err
		}
	}
}

// events are the announcements for the lock whose line this is or, with a gate, for all
// locks.
func (w *waiter) events() (events []evidence.Announcement) {
	for id, said := range w.knowledge.mailbox.empty() {
		if w.cfg.Claim.takesAny() || id == w.place.line {
			events = append(events, said...)
		}
	}
	return events
}

// awaitNews waits until there is something to do.
func (w *waiter) awaitNews(ctx context.Context, most time.Duration) error {
	return w.rest(ctx, min(most, time.Until(w.turn.next())), w.knowledge.news)
}

// rest returns when the time d has passed, or news has come. The loss of the session, or the end of
// ctx, is an error.
func (w *waiter) rest(ctx context.Context, d time.Duration, news <-chan struct{}) error {
	select {
	case <-time.After(max(0, d)):
	case <-news:
	case <-w.s.Lost():
		return w.s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// act tries and looks, if it is time for that.
func (w *waiter) act(ctx context.Context) (granted bool, err error) {
	now := time.Now()
	if w.turn.triesBy(now) {
		if granted, err := w.takeTurn(ctx); err != nil || granted {
			return granted, err
		}
	}
	if now.Before(w.turn.lookAt) {
		return false, nil
	}
	if err := w.lookAgain(ctx); err != nil {
		return false, err
	}
	return false, w.report(ctx)
}

// takeTurn tries once, or many times if the lock is about to be freed.
func (w *waiter) takeTurn(ctx context.Context) (granted bool, err error) {
	burst := w.turn.take()
	w.tryLater()
	if err := w.knowledge.verify(ctx); err != nil {
		return false, err
	}
	if burst {
		granted, err = w.tryOften(ctx)
	} else {
		granted, err = w.Try(ctx)
	}
	if err != nil || granted {
		return granted, err
	}
	if burst {
		if err := w.knowledge.verify(ctx); err != nil { // a session that had the lock meanwhile may have said so
			return false, err
		}
		w.knowledge.noteRefusal(w.refused())
	}
	if w.knowledge.unknownHolder || burst {
		w.turn.lookAt = time.Now()
	}
	return false, nil
}

// burstTries is how many tries one statement makes: the first at once, the next one each
// millisecond, the rest more rarely. A holder announces its clean end before it frees the
// lock, so a single try would come too early.
const (
	burstTries = 50
	burstFast  = 20
)

// tryOften tries many times in one statement. If a grant means that the command may
// start, the query for the token travels with it. That query draws nothing unless the
// session has the lock.
func (w *waiter) tryOften(ctx context.Context) (granted bool, err error) {
	tries := fmt.Sprintf(`SELECT won FROM (
	SELECT CASE WHEN i = 0 OR pg_catalog.pg_sleep(CASE WHEN i <= %d THEN 0.001 ELSE 0.006 END) IS NOT NULL THEN %s END AS won
	FROM pg_catalog.generate_series(0, %d) AS i) AS t WHERE won > 0 LIMIT 1`, burstFast, w.trySQL(), burstTries-1)
	queries := []string{tries}
	one := w.cfg.Claim.takesOne() && !w.cfg.Session.Quorum
	certain := one && (w.knowledge.verdictOnAll(w.cfg.Claim.Locks).Delay == 0 || w.startsWithToken(w.cfg.Claim.Locks))
	if certain {
		queries = append(queries, w.startQuery(w.cfg.Claim.Locks, w.place.leaveSQL()...))
	}
	answers, err := w.s.Ask(ctx, session.Request{SQL: queries})
	if err != nil {
		// If the ledger failed, Settle finds out more.
		if !certain || !w.startsWithToken(w.cfg.Claim.Locks) || answeredError(err) == nil || len(answers[0]) == 0 {
			return false, w.cfg.rejected(err)
		}
		certain = false
	}
	if len(answers[0]) == 0 {
		return false, nil
	}
	n, err := lastNumber(answers[0])
	if err != nil {
		return false, err
	}
	if granted, err = w.noteResult(n); err != nil {
		return false, err
	}
	if certain {
		w.place.noteLeft()
		err = w.noteDrawn(answers[1])
	}
	return granted, err
}
