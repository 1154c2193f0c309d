package runner

import (
	"context"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// desk takes the workers' orders to the server. Orders that arrive while it waits for an
// answer travel together in the next round trip, with one token.
type desk struct{ orders chan *deskOrder }

// deskOrder is a lock to release, one to try for, or both.
type deskOrder struct {
	last    *job
	said    lock.Said // to the other workers on the list, about last's end
	next    *job
	granted bool
	err     error // of the turnover
	done    chan struct{}
}

// mostOrders limits the orders in one round trip: a statement can have 1,664 columns.
const mostOrders = 256

// serve takes orders until the channel is closed.
func (d desk) serve(s *session.Session) {
	for o := range d.orders {
		batch := []*deskOrder{o}
		for more := true; more && len(batch) < mostOrders; {
			select {
			case o, more = <-d.orders:
				if more {
					batch = append(batch, o)
				}
			default:
				more = false
			}
		}
		d.carryOut(s, batch)
	}
}

func (d desk) carryOut(s *session.Session, batch []*deskOrder) {
	var t lock.Turnover
	for _, o := range batch {
		if o.last != nil {
			t.Ended = append(t.Ended, o.last.held)
			t.Said = append(t.Said, o.said)
		}
		if o.next != nil {
			t.Next = append(t.Next, o.next.bid)
		}
	}
	err := t.Do(context.Background(), s) // it returns at the latest when the session ends
	for _, o := range batch {
		if o.last != nil {
			o.last.run.afterRelease(o.last.outcome, err)
		}
		if o.next != nil {
			o.granted, o.err = err == nil && o.next.bid.Complete(), err
		}
		close(o.done)
	}
}

// turnOver releases the lock of the last command, and tries for the lock of the next
// job. Either may be nil. If possible, one round trip does both.
func (w *worker) turnOver(ctx context.Context, last, next *job) (granted bool, err error) {
	o := &deskOrder{done: make(chan struct{})}
	if last != nil {
		defer w.forget(ctx, last)
		if last.well && last.held.MayTurnOver() {
			o.last, o.said = last, w.said(last)
		} else { // others will retry an item that failed, so Release waits for those that were just refused
			w.releaseAlone(ctx, last)
		}
	}
	if next != nil && next.bid.MayTurnOver() {
		o.next = next
	}
	if o.last != nil || o.next != nil {
		w.desk.orders <- o
		<-o.done
	}
	if next == nil || o.next != nil {
		return o.granted, o.err
	}
	// This waits for the answer even if the list has ended: if the session got the lock, somebody
	// has to give it back. Other commands may need the session, and keep the lock with it, for a
	// long time.
	return next.bid.Try(context.WithoutCancel(ctx))
}

// releaseAlone releases the lock of a command that has ended, outside a turnover.
func (e *each) releaseAlone(ctx context.Context, last *job) {
	if !e.cfg.Session.Transaction {
		// If Tell fails, the session is lost, or at worst somebody else runs the item
		// again.
		_ = lock.Tell(context.WithoutCancel(ctx), last.session, e.said(last))
	}
	last.run.release(last.outcome)
}
