package runner

import (
	"context"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// exchanges are those of one session. What workers ask for while the session waits for an
// answer travels together in the next exchange, with one token.
type exchanges struct{ parts chan *exchangePart }

// exchangePart is what one worker asks for: a lock to release, one to try for, or both.
type exchangePart struct {
	last    *job
	said    lock.Said // to the other workers on the list, about last's end
	next    *job
	granted bool
	err     error // of the try
	done    chan struct{}
}

// mostParts limits the parts of one exchange: a statement can have 1,664 columns.
const mostParts = 256

// run does one exchange after the other until the channel is closed.
func (x exchanges) run(s *session.Session) {
	for p := range x.parts {
		parts := []*exchangePart{p}
		for more := true; more && len(parts) < mostParts; {
			select {
			case p, more = <-x.parts:
				if more {
					parts = append(parts, p)
				}
			default:
				more = false
			}
		}
		doExchange(s, parts)
	}
}

func doExchange(s *session.Session, parts []*exchangePart) {
	var x lock.Exchange
	for _, p := range parts {
		if p.last != nil {
			x.Ended = append(x.Ended, p.last.held)
			x.Said = append(x.Said, p.said)
		}
		if p.next != nil {
			x.Next = append(x.Next, p.next.bid)
		}
	}
	released, started := x.Do(context.Background(), s) // it returns at the latest when the session ends
	for _, p := range parts {
		if p.last != nil {
			p.last.run.afterRelease(p.last.outcome, released)
		}
		if p.next != nil {
			p.granted, p.err = started == nil && p.next.bid.Complete(), started
		}
		close(p.done)
	}
}

// exchange releases the lock of the last command, and tries for the lock of the next
// job. Either may be nil. If possible, one round trip does both.
func (w *worker) exchange(ctx context.Context, last, next *job) (granted bool, err error) {
	p := &exchangePart{done: make(chan struct{})}
	if last != nil {
		defer w.forget(ctx, last)
		if last.well && last.held.MayExchange() {
			p.last, p.said = last, w.said(last)
		} else { // others will retry an item that failed, so Release waits for those that were just refused
			w.releaseAlone(ctx, last)
		}
	}
	if next != nil && next.bid.MayExchange() {
		p.next = next
	}
	if p.last != nil || p.next != nil {
		w.exchanges.parts <- p
		<-p.done
	}
	if next == nil || p.next != nil {
		return p.granted, p.err
	}
	// This waits for the answer even if the list has ended: if the session got the lock, somebody
	// has to free it. Other commands may need the session, and keep the lock with it, for a
	// long time.
	return next.bid.Try(context.WithoutCancel(ctx))
}

// releaseAlone releases the lock of a command that has ended, outside an exchange.
func (e *each) releaseAlone(ctx context.Context, last *job) {
	if !e.cfg.Session.Transaction {
		// If Tell fails, the session is lost, or at worst somebody else runs the item
		// again.
		_ = lock.Tell(context.WithoutCancel(ctx), last.session, e.said(last))
	}
	last.run.release(last.outcome)
}
