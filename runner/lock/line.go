package lock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// The line consists of the sessions that wait. None of them blocks in the server: each is idle
// between two looks. The order is only for fairness: the promise rests on the lock itself. Package
// crowd says when each of them tries and looks (crowd.Turn). These are the line's words, each with
// its file:
//
//	place      a waiter's ticket, an advisory lock of its own whose number says when it came,
//	           and other locks that it has for its place (line_place.go). Its rank is the number
//	           of its place, from 1
//	mark       says that a session listens: of those in line, the first 24 (line_mark.go)
//	arrival    says that a waiter is about to join, and doesn't listen yet (line_mark.go)
//	dormant    a waiter behind those; a call makes it listen (line_dormant.go)
//	watch      the question about the holder alone that the first three ask with their
//	           heartbeats, in case one of them is frozen (line_watch.go, line_silence.go)
//	gate       keeps out newcomers or readers (takeGate)

// join listens, takes a ticket and looks, in one message. If the waiter is not one of the first,
// actOnLook then makes it dormant.
func (w *waiter) join(ctx context.Context) error {
	if w.place.has[ticketLock] && w.place.line != w.nextLine() { // the next of several locks
		if err := w.leaveLine(ctx); err != nil {
			return err
		}
		w.place.ticket = 0
	}
	w.place.line = w.nextLine()
	if w.place.has[ticketLock] {
		return w.lookAgain(ctx)
	}
	if err := w.endFormer(ctx); err != nil {
		return err
	}
	found, err := w.listenAndLook(ctx, w.ticketQuery())
	if err != nil {
		return err
	}
	if found.Ticket == 0 {
		return session.NotPostgreSQL()
	}
	w.place.ticket = found.Ticket
	w.place.has[ticketLock] = true
	return w.actOnLook(ctx, found)
}

// endFormer ends the candidate's previous session, if it had one and the server still has it, as it
// may after a partition. That session would keep its place in line, and also the lock, if its last
// try was granted. It is identified by its number and its ticket. If this role may not end it, the
// server will.
func (w *waiter) endFormer(ctx context.Context) error {
	former := w.candidate.wait.former
	if former.ticket == 0 || w.cfg.Claim.Shared { // readers may share a ticket
		return nil
	}
	err := w.send(ctx, fmt.Sprintf(`SELECT pg_catalog.pg_terminate_backend(pid, %d) FROM pg_catalog.pg_lock_status()
WHERE locktype = 'advisory' AND %s AND %s AND objid = '%d' AND %s AND granted AND pid = %d AND pid <> pg_catalog.pg_backend_pid()`,
		endPatience.Milliseconds(), advisory.InThisDatabaseSQL, advisory.InLinesSQL(w.cfg.Claim.lines()...), former.ticket, advisory.IsTicketSQL, former.backend))
	if session.AnsweredError(err) == nil {
		return err
	}
	return nil
}

// endPatience is how long the server waits for a session that it was told to end.
const endPatience = time.Second

// mostTickets is how many numbers are tried. No more waiters than that can come within the 10 ms
// for which one number stands.
const mostTickets = 4000

// ticketQuery takes the first number from now on, by the server's clock, that nobody
// else has. Readers may share one.
func (w *waiter) ticketQuery() string {
	from := advisory.TicketNowSQL
	if w.place.ticket != 0 { // the waiter comes back to its place
		from = strconv.FormatUint(uint64(w.place.ticket), 10) + "::bigint"
	}
	return fmt.Sprintf(`SELECT t & 4294967295 FROM pg_catalog.generate_series(%[1]s, %[1]s + %[2]d) AS t
WHERE CASE WHEN t & 4294967295 <> %[3]d THEN %[4]s END LIMIT 1`,
		from, mostTickets, advisory.CommonTicket, advisory.TryNumberSQL(w.cfg.Claim.Shared, advisory.TicketNumberSQL(w.place.line, "t")))
}

// lookAgain finds out the place in line, and acts on it.
func (w *waiter) lookAgain(ctx context.Context) error {
	found, err := w.look(ctx)
	if err != nil {
		return err
	}
	return w.actOnLook(ctx, found)
}

// actOnLook draws the conclusions from a look.
func (w *waiter) actOnLook(ctx context.Context, found *evidence.Look) (err error) {
	switch {
	case found.Rank <= crowd.MostListeners && !w.listener.on:
		w.beatPlainly()
		found, err = w.listenAndLook(ctx) // which gives it a mark
	case found.Rank > crowd.MostListeners && w.listener.on:
		err = w.goDormant(ctx)
	}
	if err != nil {
		return err
	}
	free := !w.cfg.Claim.takesAny() && !found.Holds(w.place.line)
	at := crowd.Situation{Rank: found.Rank, Held: len(found.Holders) > 0, Free: free, KnowsLess: free && w.knowsLess(found)}
	for _, s := range found.Line {
		if s.PID != w.turn.Own {
			at.Ahead = append(at.Ahead, s.PID)
		}
	}
	w.turn.Looked(time.Now(), at)
	if err := w.duties(ctx, found); err != nil {
		return err
	}
	w.tryLater()
	return nil
}

func (w *waiter) tryLater() { w.turn.TryLater(time.Now(), w.watches()) }

// watches says whether the heartbeat watches the holder.
func (w *waiter) watches() bool { return w.watched.current() != off }

// knowsLess says whether others in line may know more of the last holder than this waiter, which
// may have just come back to its place and heard nothing. This waiter would have to hold the lock
// for a delay, while one of the others, which the holder may have named, can start at once.
func (w *waiter) knowsLess(found *evidence.Look) bool {
	listening := found.Marked
	if w.place.has[markLock] {
		listening--
	}
	return listening > 0 && w.verdictOn(w.place.line).Delay > 0
}

// duties: the first keeps newcomers out, the others make room, all call the dormant waiters if few
// listen, and the first few watch the holder.
func (w *waiter) duties(ctx context.Context, found *evidence.Look) error {
	keepOrder := w.takeGate
	if w.turn.Rank > 1 {
		keepOrder = w.makeRoom
	}
	if err := keepOrder(ctx, found); err != nil {
		return err
	}
	if err := w.callIfFew(ctx, found); err != nil {
		return err
	}
	if w.turn.Rank > crowd.MostWatchers {
		w.unwatch()
		return nil
	}
	return w.watchHolder(ctx, found)
}

// takeGate takes the gate for the first in line, if the claim needs one.
func (w *waiter) takeGate(ctx context.Context, found *evidence.Look) error {
	readers := slices.ContainsFunc(found.Holders, func(s evidence.Seat) bool { return s.Shared })
	if w.place.has[gateLock] || !w.cfg.Claim.needsGate(readers) {
		return nil
	}
	n, err := w.askNumber(ctx, "SELECT "+w.lockOf(gateLock).TrySQL()+"::int")
	if err == nil && n == 1 {
		w.place.has[gateLock] = true
	}
	return err
}

// A waiter is a guest in a database whose own logins come first. On a server
// with few free connections the waiters at the end of the line give theirs back, and come
// again later. The first in line never gives its own back.

// errMadeRoom says that a connection was given back to a server on which few are free.
var errMadeRoom = session.FullError("few connections are free: giving this one back while others wait in line, and coming again")

// makeRoom returns errMadeRoom if too few connections are free for this waiter to keep its own.
func (w *waiter) makeRoom(ctx context.Context, found *evidence.Look) error {
	if w.limits == nil {
		limits, err := inspect.ReadLimits(ctx, w.Session)
		if err != nil {
			return w.cfg.Claim.rejected(err)
		}
		w.limits = &limits
	}
	const noneFree = 0 // if it may stay even then, it need not ask how many are free
	if crowd.MayStay(w.turn.Rank, found.Waiting, noneFree, w.limits.Server) {
		return nil
	}
	left, err := w.limits.Room(ctx, w.Session)
	if err != nil {
		return w.cfg.Claim.rejected(err)
	}
	if crowd.MayStay(w.turn.Rank, found.Waiting, left.Free, left.Of) {
		return nil
	}
	return errMadeRoom
}
