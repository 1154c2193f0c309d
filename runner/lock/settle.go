package lock

import (
	"cmp"
	"context"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// Settle makes a granted claim one that a command can be started under: it waits
// until a former holder that may not know of its loss is dead, draws the token,
// and keeps the session alive from then on.
//
// A command starts only if all of this holds, in this order:
//
//	the claim is complete             Bid.complete, after a trial
//	no earlier command is alive       waitOut; with a ledger drawAndStart, which also
//	                                  obeys a pause and --once-per
//	the locks are listed in pg_locks  drew, in the statement that draws the token
//	the lease is not over             ExpireIfDue and Err, below
//	no signal has come, and the       start, in package runner
//	session is still not lost
//	the lease is not over             the guard, just before fork (package child)
func (b *Bid) Settle(ctx context.Context) (*Held, error) {
	// A second login may take its time. What a transaction was granted is an answer to
	// a question of its own, from which the Deadline counts.
	if b.cfg.Session.Transaction {
		b.s.Keep()
	} else if b.delay > 0 || b.cfg.Session.Quorum {
		if err := b.s.Ping(ctx); err != nil {
			return nil, err
		}
		b.s.Keep()
	}
	draw := b.drawAndStart
	if !b.remembers() {
		draw = b.draw
		if err := b.waitOut(ctx); err != nil {
			return nil, err
		}
	}
	b.preparation.begin()
	err := draw(ctx)
	err = cmp.Or(err, b.preparation.done())
	if err == nil && b.s.ExpireIfDue() { // the disk took longer than the lease has
		err = b.s.Err()
	}
	if err != nil {
		return nil, err
	}
	b.describe()
	b.s.Keep()
	if err := b.s.Err(); err != nil {
		return nil, err
	}
	return &Held{
		Grant: *b.token, Session: b.s, Locks: b.held, Slot: b.slot, cfg: b.cfg, vouches: b.vouches,
		remembered: b.started, end: ledger.End{Outcome: ledger.Stopped},
	}, nil
}

// waitOut holds the lock for as long as a former holder may be alive, or until
// there is evidence that it isn't. With a quorum that counts from a commit which this
// server's standbys confirm.
func (b *Bid) waitOut(ctx context.Context) error {
	if b.delay <= 0 {
		return nil
	}
	b.token, b.started = nil, false // one that was drawn before is not for what starts then
	if err := b.announceDelay(ctx); err != nil {
		return err
	}
	if err := b.s.Witness(ctx); err != nil {
		return err
	}
	b.cfg.Log.Info("lock granted without evidence that its last holder is dead; waiting", "event", "delayed", "delay", b.delay)
	defer b.cfg.Observer.delayed(b.delay)()
	over := time.NewTimer(b.delay)
	defer over.Stop()
	for {
		select {
		case <-over.C:
			return nil
		case <-b.news:
			if err := b.verify(ctx); err != nil {
				return err
			}
			if v := b.verdictOf(b.held); v.delay == 0 {
				b.vouches = v.vouches
				return nil
			}
		case <-b.s.Lost():
			return b.s.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// announceDelay shows those who watch the holder that its command has not started,
// and makes room in line.
func (b *Bid) announceDelay(ctx context.Context) error {
	d := b.cfg.Description
	d.Delay = b.delay
	b.s.SetComment(d.Comment())
	_, err := b.s.Query(ctx, append(b.line.leaving(), session.PlainBeat)...)
	return b.error(err)
}
