package runner

import (
	"context"

	"github.com/pglead/pglead/runner/lock"
)

// exchangePart is what one worker asks for: a lock to release, one to try for, or both.
type exchangePart struct {
	last, next *job
	tried      chan error // gets the error of the try, or nil, when the exchange is done
}

// mostParts limits the parts of one exchange: a statement can have 1,664 columns.
const mostParts = 256

// doExchanges does one exchange after the other until the channel is closed. What workers ask for
// while the session waits for an answer travels together in the next exchange, with one token.
func (e *each) doExchanges() {
	for p := range e.exchanges {
		parts := []exchangePart{p}
		for more := true; more && len(parts) < mostParts; {
			select {
			case p, more = <-e.exchanges:
				if more {
					parts = append(parts, p)
				}
			default:
				more = false
			}
		}
		e.doExchange(parts)
	}
}

func (e *each) doExchange(parts []exchangePart) {
	var x lock.Exchange
	for _, p := range parts {
		if p.last != nil {
			x.Ended = append(x.Ended, p.last.held)
			x.Ends = append(x.Ends, e.endToTell(p.last))
		}
		if p.next != nil {
			x.Next = append(x.Next, p.next.bid)
		}
	}
	released, started := x.Do(context.Background(), e.listSession) // it returns at the latest when the session ends
	for _, p := range parts {
		if p.last != nil {
			p.last.run.afterRelease(released)
		}
		p.tried <- started
	}
}

// exchange releases the lock of the last command, and tries for the lock of the next
// job. Either may be nil. If possible, one round trip does both.
func (w *worker) exchange(ctx context.Context, last, next *job) (granted bool, err error) {
	p := exchangePart{tried: make(chan error, 1)}
	if last != nil {
		defer w.forget(ctx, last)
		if last.ok && last.held.MayExchange() {
			p.last = last
		} else { // others will retry an item that failed, so Release waits for those that were just refused
			w.releaseAlone(ctx, last)
		}
	}
	if next != nil && next.bid.MayExchange() {
		p.next = next
	}
	if p.last != nil || p.next != nil {
		w.exchanges <- p
		err = <-p.tried
	}
	switch {
	case next == nil:
		return false, nil
	case p.next != nil:
		return err == nil && next.bid.Complete(), err
	}
	// This waits for the answer even if the list has ended: if the session got the lock, somebody
	// has to free it. Other commands may need the session, and keep the lock with it, for a
	// long time.
	return next.bid.Try(context.WithoutCancel(ctx))
}

// releaseAlone releases the lock of a command that has ended, outside an exchange.
func (e *each) releaseAlone(ctx context.Context, last *job) {
	if !e.cfg.Lock.Session.Transaction {
		// If that fails, the session is lost, or at worst somebody else runs the item
		// again.
		_ = e.endToTell(last).Tell(context.WithoutCancel(ctx), last.session)
	}
	last.run.release()
}

// endToTell is what the other workers on the list are told of a command that has ended.
func (e *each) endToTell(last *job) lock.ItemEnd {
	return lock.ItemEnd{List: e.cfg.List, Item: last.ID, OK: last.ok}
}
