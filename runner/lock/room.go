package lock

import (
	"context"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/session"
)

// A waiter is a guest in a database whose own logins come first. On a server
// with few free connections the waiters at the end of the line give theirs back, and come
// again later. The first in line never gives its own back.

// errCrowded says that a connection was given back to a server on which few are free.
var errCrowded = session.Crowded("few connections are free: giving this one back while others wait in line, and coming again")

// makeRoom returns errCrowded if too few connections are free for this waiter to keep its own.
func (w *waiter) makeRoom(ctx context.Context, found *look) error {
	if w.limits == nil {
		limits, err := session.ReadLimits(ctx, w.s)
		if err != nil {
			return w.cfg.rejected(err)
		}
		w.limits = &limits
	}
	if crowd.StaysAnyway(w.turn.rank, found.waiting, w.limits.Server) {
		return nil
	}
	left, err := w.limits.Room(ctx, w.s)
	if err != nil {
		return w.cfg.rejected(err)
	}
	if crowd.MayStay(w.turn.rank, found.waiting, left.Free, left.Of) {
		return nil
	}
	return errCrowded
}
