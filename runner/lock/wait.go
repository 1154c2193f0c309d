package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/pglead/pglead/runner/lock/advisory"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// wait is a waiter's loop: it awaits news or the next time, decides, and acts. See Bid.wait.
func (l *line) wait(ctx context.Context) (granted bool, err error) {
	b := l.b
	if err := l.join(ctx); err != nil {
		return false, err
	}
	defer l.unwatch()
	if err := b.cfg.Observer.reportWait(ctx, b); err != nil {
		return false, err
	}
	for {
		rest := b.candidate.left()
		if rest <= 0 {
			return false, nil
		}
		if err := l.awaitNews(ctx, rest); err != nil {
			return false, err
		}
		if l.called.Swap(false) {
			l.lookAt = time.Now()
		}
		l.decide(l.events())
		l.heedWatch()
		if !l.triesBy(time.Now()) { // l.try verifies by itself
			if err := b.verify(ctx); err != nil {
				return false, err
			}
		}
		if granted, err := l.act(ctx); err != nil || granted {
			return granted, err
		}
	}
}

// events are the announcements for the lock that the line is for or, with a gate, for all
// locks.
func (l *line) events() (events []evidence.Announcement) {
	for id, said := range l.b.mailbox.empty() {
		if l.b.cfg.Claim.Gate != nil || id == l.of {
			events = append(events, said...)
		}
	}
	return events
}

// awaitNews waits until there is something to do.
func (l *line) awaitNews(ctx context.Context, most time.Duration) error {
	timer := time.NewTimer(max(0, min(most, time.Until(l.next()))))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.b.news:
	case <-l.b.s.Lost():
		return l.b.s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// act tries and looks, if it is time for that.
func (l *line) act(ctx context.Context) (granted bool, err error) {
	now := time.Now()
	if l.triesBy(now) {
		if granted, err := l.try(ctx); err != nil || granted {
			return granted, err
		}
	}
	if now.Before(l.lookAt) {
		return false, nil
	}
	if err := l.look(ctx); err != nil {
		return false, err
	}
	return false, l.b.cfg.Observer.reportWait(ctx, l.b)
}

// try tries once, or many times if the lock is about to be freed.
func (l *line) try(ctx context.Context) (granted bool, err error) {
	b := l.b
	burst := l.burst
	l.tryAt, l.burst = time.Time{}, false
	l.tryLater()
	if err := b.verify(ctx); err != nil {
		return false, err
	}
	if burst {
		granted, err = l.tryOften(ctx)
	} else {
		granted, err = b.Try(ctx)
	}
	if err != nil || granted {
		return granted, err
	}
	if burst {
		if err := b.verify(ctx); err != nil { // a session that had the lock meanwhile may have said so
			return false, err
		}
		b.noteRefusal()
	}
	if b.unknownHolder || burst {
		l.lookAt = time.Now()
	}
	return false, nil
}

// burstTries is how many tries one statement makes: the first at once, the next each
// millisecond, the rest more rarely. A holder announces its clean end before it frees the
// lock, so one try would come too early.
const (
	burstTries = 50
	burstFast  = 20
)

// tryOften tries many times in one statement. If a grant means that the command may
// start, the query for the token travels with it: that draws nothing unless the session
// has the lock.
func (l *line) tryOften(ctx context.Context) (granted bool, err error) {
	b := l.b
	tries := fmt.Sprintf(`SELECT won FROM (
	SELECT CASE WHEN i = 0 OR pg_catalog.pg_sleep(CASE WHEN i <= %d THEN 0.001 ELSE 0.006 END) IS NOT NULL THEN %s END AS won
	FROM pg_catalog.generate_series(0, %d) AS i) AS t WHERE won > 0 LIMIT 1`, burstFast, b.trySQL(), burstTries-1)
	queries := []string{tries}
	one := len(b.cfg.Claim.Locks) == 1 && b.cfg.Claim.Gate == nil && !b.cfg.Session.Quorum
	certain := one && (b.verdictOnAll(b.cfg.Claim.Locks).Delay == 0 || b.startsWithToken(b.cfg.Claim.Locks))
	if certain {
		queries = append(queries, b.drawQuery(b.cfg.Claim.Locks, l.leaveSQL()...))
	}
	answers, err := b.s.Ask(ctx, session.Request{SQL: queries, Longer: time.Second})
	if err != nil {
		// If the ledger failed, Settle finds out more.
		if !certain || !b.startsWithToken(b.cfg.Claim.Locks) || answeredError(err) == nil || len(answers[0]) == 0 {
			return false, b.error(err)
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
	if granted, err = b.noteResult(n); err != nil {
		return false, err
	}
	if certain {
		l.noteLeft()
		err = b.drew(answers[1])
	}
	return granted, err
}

// verdictOnAll is the verdict on all of these locks by now.
func (b *Bid) verdictOnAll(locks []advisory.Lock) evidence.Verdict {
	all := evidence.Verdict{CoversEarlier: true}
	for _, l := range locks {
		v := b.verdict(l.ID)
		all.Delay = max(all.Delay, v.Delay)
		all.CoversEarlier = all.CoversEarlier && v.CoversEarlier
	}
	return all
}
