package lock

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// The line is the sessions that wait. None of them blocks in the server: each is idle between
// two looks. Each has a ticket, an advisory lock of its own whose number says when it came.
// The order is only for fairness: the promise rests on the lock itself.
//
//	rank 1    sends a burst when the holder's clean end names it: one statement with many
//	          tries, the first at once. It watches the holder (silence.go), and finds
//	          out by itself if the lock is free (watch.go).
//	up to 3   also watch the holder, in case those before them are frozen.
//	rank r    tries (r-1) * TurnPatience after the lock has come free, since those
//	          before it may be dead. It doesn't if it hears of a start.
//	up to 3   also try if two looks in a row have shown the lock to be free.
//	up to 24  listen, and have a mark that says so.
//	others    are dormant (dormant.go), and look: at the line's pace while it moves, and
//	          more and more seldom, the further behind they are, while it stands.
//
// turn.go lists when each of them tries and looks.

// waiter is a candidate's bid, which waits in line for what the first try did not get.
type waiter struct {
	*Bid
	candidate *Candidate
	returning bool      // others may have had the locks since its last session or try, so it must not pass those in line
	told      time.Time // when Observer.Waiting was last called

	rank     int
	ahead    []uint32 // the sessions before this one, the next first
	schedule schedule
	watched  watch // of the holder

	called atomic.Bool     // somebody has called this one
	limits *inspect.Limits // the server's, once they are known
	warm   bool            // a warm-up start without a token was made (warmUp)
}

// join listens, takes a ticket and looks, in one message. If the waiter is not one of the first,
// digest then makes it dormant.
func (w *waiter) join(ctx context.Context) error {
	if w.place.held[ticketLock] && w.place.line != w.nextLine() { // the next of several locks
		if err := w.leaveLine(ctx); err != nil {
			return err
		}
		w.place.ticket = 0
	}
	w.place.line = w.nextLine()
	if w.place.held[ticketLock] {
		return w.lookAgain(ctx)
	}
	found, err := w.listenAndLook(ctx, append(w.endGhostQuery(), w.ticketQuery())...)
	if err != nil {
		return err
	}
	if found.ticket == 0 {
		return session.ErrNotPostgreSQL()
	}
	w.place.ticket = found.ticket
	w.place.held[ticketLock] = true
	return w.digest(ctx, found)
}

// lookAgain finds out the place in line, and acts on it.
func (w *waiter) lookAgain(ctx context.Context) error {
	found, err := w.look(ctx)
	if err != nil {
		return err
	}
	return w.digest(ctx, found)
}

// digest draws the conclusions from a look.
func (w *waiter) digest(ctx context.Context, found *look) (err error) {
	switch {
	case found.rank <= crowd.MostListeners && !w.knowledge.listens():
		found, err = w.wake(ctx)
	case found.rank > crowd.MostListeners && w.knowledge.listens():
		err = w.goDormant(ctx)
	}
	if err != nil {
		return err
	}
	moved := w.noteRank(found)
	w.plan(found, moved)
	if err := w.duties(ctx, found); err != nil {
		return err
	}
	w.tryLater()
	return nil
}

// noteRank notes the rank. It returns how many places the waiter has moved forward.
func (w *waiter) noteRank(found *look) (moved int) {
	own := w.s.BackendPID()
	moved = max(0, w.rank-found.rank)
	w.rank, w.ahead = found.rank, nil
	for _, s := range found.Line {
		if s.PID == own {
			break
		}
		w.ahead = append(w.ahead, s.PID)
	}
	w.schedule.unheld++
	if len(found.Holders) > 0 {
		w.schedule.unheld = 0
	}
	return moved
}

// duties does the duties of this place in line: the first keeps newcomers out, and the others
// make room. All call the dormant waiters if few listen, and the first few watch the holder.
func (w *waiter) duties(ctx context.Context, found *look) error {
	keepOrder := w.takeGate
	if w.rank > 1 {
		keepOrder = w.makeRoom
	}
	if err := keepOrder(ctx, found); err != nil {
		return err
	}
	if err := w.callIfFew(ctx, found); err != nil {
		return err
	}
	if w.rank > crowd.MostWatchers {
		w.unwatch()
		return nil
	}
	if err := w.warmUp(ctx); err != nil {
		return err
	}
	return w.followHolder(ctx, found)
}

// takeGate takes the gate for the first in line. It keeps out newcomers, which could take one of
// several locks first, and readers, which might come for ever.
func (w *waiter) takeGate(ctx context.Context, found *look) error {
	readers := slices.ContainsFunc(found.Holders, func(s evidence.Seat) bool { return s.Shared })
	if w.place.held[gateLock] || !w.cfg.Claim.takesAny() && (w.cfg.Claim.shared() || !readers) {
		return nil
	}
	n, err := w.number(ctx, "SELECT "+w.place.lock(gateLock).TrySQL()+"::int")
	if err == nil && n == 1 {
		w.place.held[gateLock] = true
	}
	return err
}
