package lock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// A lock is held without a command for as long as an earlier holder's command may be alive: for the
// rest of the lock-delay (waitOut) or, with a ledger, of the time that an open run may last
// (ledgerStart.waitForOpenRuns).

// waitOut holds the locks without a command for the rest of the delay, in which a former holder's
// command may be alive, or until there is evidence that it is dead.
func (b *bid) waitOut(ctx context.Context) error {
	if b.reviewGrants() == 0 {
		return nil
	}
	// The grant may have come with a word of a session whose role was not looked up yet.
	if err := b.listener.askRoles(ctx); err != nil {
		return err
	}
	if b.youngFor(b.reviewGrants()) > 0 {
		if err := b.Session.LearnAge(ctx); err != nil {
			return err
		}
	}
	rest := b.reviewGrants()
	if rest == 0 {
		return nil
	}
	if err := b.putOffStart(ctx, rest); err != nil {
		return err
	}
	if err := b.confirmGrants(ctx); err != nil {
		return err
	}
	d := delay{why: "lock granted without evidence that its last holder is dead", heardOver: func() bool { return b.reviewGrants() == 0 }}
	for d.rest = b.reviewGrants(); d.rest > 0; d.rest = b.reviewGrants() { // what is heard can make it longer
		if err := b.hold(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// delay is a time for which the locks are held without a command. It may be over earlier.
type delay struct {
	rest      time.Duration
	why       string
	heardOver func() bool                   // it is, by what was heard: called with each announcement
	askOver   func() (over bool, err error) // it is, by the ledger: called every askLedgerEvery; may be nil
}

// hold holds the locks without a command until the delay is over.
func (b *bid) hold(ctx context.Context, d delay) error {
	b.logDelay(ctx, d)
	b.cfg.SayTrying(d.rest)
	defer b.cfg.Observer.delayed(d.rest)()
	timer := time.NewTimer(d.rest)
	defer timer.Stop()
	var asks <-chan time.Time
	if d.askOver != nil {
		ticker := time.NewTicker(askLedgerEvery)
		defer ticker.Stop()
		asks = ticker.C
	}
	for {
		select {
		case <-timer.C:
			return nil
		case <-asks:
			if over, err := d.askOver(); err != nil || over {
				return err
			}
		case <-b.listener.news:
			if err := b.listener.askRoles(ctx); err != nil {
				return err
			}
			if d.heardOver() {
				return nil
			}
		case <-b.Session.Done():
			return b.Session.EndError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *bid) logDelay(ctx context.Context, d delay) {
	level := LevelNotice
	if d.rest > b.cfg.LongDelay {
		level = slog.LevelWarn
	}
	most := (d.rest + time.Second - 1).Truncate(time.Second)
	b.cfg.Log.Log(ctx, level, fmt.Sprintf("%s; the command starts within %s", d.why, visible.Duration(most)), "event", "delayed", "delay", d.rest)
}

// putOffStart puts the start off: it drops the token, since a later start needs a later one, shows
// others that the command has not started, and when it will, and leaves the line. Every delay
// begins here. A bid that must not wait gets ErrDelayed instead.
func (b *bid) putOffStart(ctx context.Context, rest time.Duration) error {
	b.dropDraw(ctx)
	if b.mustNotWait {
		return cmp.Or(b.Session.EndError(), ErrDelayed)
	}
	b.delayed = true
	d := b.cfg.describe()
	d.Delay, d.Since = rest, time.Now()
	b.show(d)
	return b.leaveLine(ctx, session.PlainBeatQuery)
}
