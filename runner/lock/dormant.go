package lock

import (
	"context"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/lock/advisory"
	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/session"
)

// Each NOTIFY wakes all sessions of a database that listen, so in a long line only the
// first do. The others are dormant: a holder's clean end does not reach them. If a dormant
// waiter took a free lock, it would have heard nothing of the last holder, and would have to
// hold the lock for the lock-delay. So a holder that is done, and behind which all are dormant,
// calls, and keeps the lock until one of them listens. This is for speed: the promise does
// not depend on it.
//
// To call is to take a lock, which the heartbeat of a dormant waiter then can't have. Many
// may call at once. Waiters call, too, while few listen (FewListen): brief commands would use
// up the rest of them before a heartbeat comes.

// goDormant makes the waiter dormant. A turn that it had is over: if it took the lock now, it
// would have heard nothing of the last holder.
func (l *line) goDormant(ctx context.Context) error {
	l.tryAt, l.burst = time.Time{}, false
	l.b.s.SetHeartbeat(session.Heartbeat{
		Every:   leasetime.WaiterBeat(l.b.cfg.Session.Lease),
		Request: session.Request{SQL: []string{"SELECT " + advisory.Exclusive(advisory.CallOf(l.of).ID).TryXactSQL()}, Then: l.hearCall},
	})
	if l.marked { // before it is deaf, so that nobody relies on it
		if err := l.b.send(ctx, "SELECT "+advisory.MarkOf(l.ticketLock()).UnlockSQL()); err != nil {
			return err
		}
		l.marked = false
	}
	return l.b.Unlisten(ctx)
}

// wake makes a dormant waiter listen, and look again, which marks it.
func (l *line) wake(ctx context.Context) (found *look, err error) {
	l.b.beatPlainly()
	return l.b.look(ctx, l.b.listenQuery()...)
}

// callIfFew calls while few listen and others are dormant. In the lines of several locks
// nobody calls.
func (l *line) callIfFew(ctx context.Context, found *look) error {
	claim := l.b.cfg.Claim
	few := crowd.FewListen(found.marked, found.waiting) && (claim.Gate != nil || len(claim.Locks) == 1)
	if few == l.calling {
		return nil
	}
	call := advisory.CallOf(l.of)
	sql := call.UnlockSQL()
	if few {
		sql = call.TrySQL()
	}
	n, err := l.b.number(ctx, "SELECT "+sql+"::int")
	if n == 1 { // else a heartbeat has it, and the next look comes soon
		l.calling = few
	}
	return err
}

// hearCall reads the answer to a dormant waiter's heartbeat.
func (l *line) hearCall(answers []session.Rows) {
	if !answers[0].Is("f") {
		return
	}
	l.called.Store(true)
	nudge(l.b.news)
}
