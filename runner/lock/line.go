package lock

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock/advisory"
	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// The line is the sessions that wait. None of them blocks in the server: each is idle between
// two looks. Each has a ticket, an advisory lock of its own whose number says when it came.
// The order is only for fairness; the lock itself keeps the promise.
//
//	rank 1    sends a burst when the holder's clean end names it: one statement with many
//	          tries, the first at once. It watches the holder (silence.go), and finds
//	          out by itself if the lock is free (watch.go).
//	up to 3   also watch it, in case those before them are frozen.
//	rank r    tries when the lock has come free, r-1 times TurnPatience later, since
//	          those before it may be dead. It doesn't if it hears of a start.
//	up to 3   also tries if two looks in a row have shown the lock to be free.
//	up to 24  listens, and is marked as one that does.
//	others    are dormant (dormant.go), and look: by the line's pace while it moves, and
//	          more and more seldom, the further behind they are, while it stands.
//
// turn.go has when each tries and looks.

// line is a bid's place among the waiters.
type line struct {
	b     *Bid
	of    lockkey.ID // the lock in whose line it stands
	rank  int
	ahead []uint32 // the sessions before this one, the next first

	schedule
	following

	// What it has of the server's locks:
	ticketed bool
	ticket   uint32 // the lower half of the ticket's number
	marked   bool   // as one that listens
	gated    bool   // it holds the gate
	calling  bool   // it calls the dormant waiters

	called atomic.Bool     // somebody has called this one
	limits *inspect.Limits // the server's, once they are known
	warm   bool            // a start without a token was made (warmUp)
}

// lineOf is the lock in whose line the bid waits for what is missing.
func (b *Bid) lineOf() lockkey.ID {
	if b.cfg.Claim.Gate != nil {
		return *b.cfg.Claim.Gate
	}
	if missing := b.missing(); len(missing) > 0 {
		return missing[0].ID
	}
	return b.cfg.Claim.Locks[len(b.cfg.Claim.Locks)-1].ID
}

// shared says whether the bid is a reader's.
func (b *Bid) shared() bool { return b.cfg.Claim.Locks[0].Shared }

// join listens, takes a ticket and looks, in one message. digest makes the waiter dormant if it is not
// one of the first.
func (l *line) join(ctx context.Context) error {
	if l.ticketed && l.of != l.b.lineOf() { // the next of several locks
		if err := l.b.send(ctx, l.leaveQueries()...); err != nil {
			return err
		}
		l.ticket = 0
	}
	l.of = l.b.lineOf()
	if l.ticketed {
		return l.look(ctx)
	}
	found, err := l.b.look(ctx, slices.Concat(l.endGhostQuery(), l.b.listenQuery(), []string{l.ticketQuery()})...)
	if err != nil {
		return err
	}
	if found.ticket == 0 {
		return session.ErrNotPostgreSQL()
	}
	l.ticket, l.ticketed = found.ticket, true
	return l.digest(ctx, found)
}

// leaveQueries gives back the ticket, its mark and the gate by a query, if it has any. The
// caller has to send it.
func (l *line) leaveQueries() (query []string) {
	if columns := l.leaveSQL(); len(columns) > 0 {
		query = []string{"SELECT " + strings.Join(columns, ", ")}
		l.noteLeft()
	}
	return query
}

func (l *line) leaveSQL() (columns []string) {
	if l == nil {
		return nil
	}
	if l.ticketed {
		columns = append(columns, l.ticketLock().UnlockSQL())
	}
	if l.marked {
		columns = append(columns, advisory.MarkOf(l.ticketLock()).UnlockSQL())
	}
	// The lock of a call is not among them: a waiter that calls goes on as a holder.
	if l.gated {
		columns = append(columns, l.gate().UnlockSQL())
	}
	return columns
}

// noteLeft notes that all three are given back.
func (l *line) noteLeft() {
	l.ticketed, l.marked, l.gated = false, false, false
}

// gate is the lock that the first in line holds against newcomers: the claim's gate or,
// against readers, the gate of the lock itself.
func (l *line) gate() advisory.Lock {
	if gate := l.b.cfg.Claim.Gate; gate != nil {
		return advisory.Exclusive(*gate)
	}
	return advisory.GateOf(l.of)
}

// look finds out the place in line, and acts on it.
func (l *line) look(ctx context.Context) error {
	found, err := l.b.look(ctx)
	if err != nil {
		return err
	}
	return l.digest(ctx, found)
}

// digest draws the conclusions from a look.
func (l *line) digest(ctx context.Context, found *look) (err error) {
	switch {
	case found.rank <= crowd.MostListeners && !l.b.listens():
		found, err = l.wake(ctx)
	case found.rank > crowd.MostListeners && l.b.listens():
		err = l.goDormant(ctx)
	}
	if err != nil {
		return err
	}
	moved := l.place(found)
	l.plan(found, moved)
	if err := l.duties(ctx, found); err != nil {
		return err
	}
	l.tryLater()
	return nil
}

// place notes the place in line, and by how many places that has moved forward.
func (l *line) place(found *look) (moved int) {
	own := l.b.s.BackendPID()
	moved = max(0, l.rank-found.rank)
	l.rank, l.ahead = found.rank, nil
	for _, s := range found.Line {
		if s.PID == own {
			break
		}
		l.ahead = append(l.ahead, s.PID)
	}
	l.unheld++
	if len(found.Holders) > 0 {
		l.unheld = 0
	}
	return moved
}

// duties does what this place in line is there for: the first keeps newcomers out, the others
// make room; all call the dormant waiters if few listen, and the first few watch the holder.
func (l *line) duties(ctx context.Context, found *look) error {
	keepOrder := l.takeGate
	if l.rank > 1 {
		keepOrder = l.makeRoom
	}
	if err := keepOrder(ctx, found); err != nil {
		return err
	}
	if err := l.callIfFew(ctx, found); err != nil {
		return err
	}
	if l.rank > crowd.MostWatchers {
		l.unwatch()
		return nil
	}
	if err := l.warmUp(ctx); err != nil {
		return err
	}
	return l.followHolder(ctx, found)
}

// takeGate takes the gate for the first in line. It keeps newcomers from taking one of
// several locks before it, and readers, which might come for ever.
func (l *line) takeGate(ctx context.Context, found *look) error {
	readers := slices.ContainsFunc(found.Holders, func(s evidence.Seat) bool { return s.Shared })
	if l.gated || l.b.cfg.Claim.Gate == nil && (l.b.shared() || !readers) {
		return nil
	}
	n, err := l.b.number(ctx, "SELECT "+l.gate().TrySQL()+"::int")
	l.gated = err == nil && n == 1
	return err
}
