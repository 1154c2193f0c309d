package lock

import (
	"context"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/session"
)

// Each NOTIFY wakes all listening sessions of a database, so in a long line only the first few
// listen. The others are dormant: a holder's clean end does not reach them. A dormant waiter that
// took a free lock would have heard nothing of the last holder, and would have to hold the lock for
// the lock-delay. So a holder that knew of a dormant waiter when it drew its token (Grant.dormant)
// calls when it is done, and keeps the lock until one of the first in line listens: it doesn't wait
// if one does already. This is for speed: the promise does not depend on it.
//
// To call is to take a lock, which the heartbeat of a dormant waiter then can't take. Many may call
// at once. Waiters call, too, while few listen (FewListen): otherwise brief commands would use up
// the remaining listeners before a heartbeat comes.

// goDormant makes the waiter dormant, and cancels its turn: if it took the lock now, it
// would have heard nothing of the last holder.
func (w *waiter) goDormant(ctx context.Context) error {
	w.turn.clearTry()
	w.unwatch() // otherwise the end of the watch would later replace this heartbeat
	w.s.SetHeartbeat(session.Heartbeat{
		Every:   leasetime.WaiterBeat(w.cfg.Session.Lease),
		Request: session.Request{SQL: []string{"SELECT " + advisory.Exclusive(advisory.CallOf(w.place.line).ID).TryXactSQL()}, Then: w.hearCall},
	})
	if w.place.held[markLock] { // the mark goes before the UNLISTEN, so that nobody relies on it
		if err := w.send(ctx, "SELECT "+w.place.lock(markLock).UnlockSQL()); err != nil {
			return err
		}
		w.place.held[markLock] = false
	}
	return w.Unlisten(ctx)
}

// wake makes a dormant waiter listen and look again, which gives it a mark.
func (w *waiter) wake(ctx context.Context) (found *look, err error) {
	w.beatPlainly()
	return w.listenAndLook(ctx)
}
