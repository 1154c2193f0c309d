package lock

import (
	"context"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/session"
)

// A waiter is a guest in somebody's database, whose own logins come first. On a server
// with few free connections the waiters at the end of the line give theirs back, and come
// again later. The first in line never does.

// errCrowded says that a connection was given back to a server with few left.
var errCrowded = session.Crowded("few connections are free: giving this one back while others wait in line, and coming again")

// makeRoom returns errCrowded if too few connections are free for this waiter to keep its own.
func (l *line) makeRoom(ctx context.Context, found *look) error {
	if l.limits == nil {
		limits, err := inspect.ReadLimits(ctx, l.b.s)
		if err != nil {
			return l.b.error(err)
		}
		l.limits = &limits
	}
	if crowd.StaysAnyway(l.rank, found.waiting, l.limits.Server) {
		return nil
	}
	left, err := l.limits.Room(ctx, l.b.s)
	if err != nil {
		return l.b.error(err)
	}
	if crowd.MayStay(l.rank, found.waiting, left.Free, left.Of) {
		return nil
	}
	return errCrowded
}
