package lock

import (
	"context"
	"slices"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
)

// place is a bid's place in line, and the server's locks that it has for that: those in has, which
// leaveSQL frees together, and the arrival lock, which is freed sooner. Common marks go with the
// listener, also without a place.
type place struct {
	line     lockkey.ID // the lock in whose line it stands, or stood last; zero if it never did
	ticket   uint32     // the lower half of the ticket's number
	has      [placeLockCount]bool
	arriving bool // the bid has the arrival lock: it is about to join the line
}

// placeLock is one of the locks that go with a place in line.
type placeLock int

const (
	ticketLock placeLock = iota
	markLock             // shows that the waiter listens
	gateLock             // the first in line has it, against newcomers
	callLock             // calls the dormant waiters
	placeLockCount
)

// lockOf is one of the locks that go with the bid's place.
func (b *bid) lockOf(which placeLock) advisory.Lock {
	claim, line := b.cfg.Claim, b.place.line
	ticket := advisory.TicketOf(line, b.place.ticket, claim.Shared)
	switch which {
	case markLock:
		return advisory.MarkOf(ticket)
	case gateLock:
		if claim.takesAny() {
			return advisory.Exclusive(*claim.Gate)
		}
		return advisory.GateOf(line) // against readers
	case callLock:
		return advisory.CallOf(claim.lines()[0]) // nobody calls if there are several (hasOneLine)
	}
	return ticket
}

// everJoined says whether the bid stands in line, or has stood there.
func (p *place) everJoined() bool { return p.line != lockkey.ID{} }

// leaveSQL are SQL expressions that free the locks that the bid has for its place. The lock of a
// call is among them: it must not be kept for as long as the command runs, since each dormant waiter
// that hears a call looks. A holder that calls takes it anew, maybe without ever having been in line
// (Held.Call), and frees it with its locks. The arrival lock is apart (endArrival).
func (b *bid) leaveSQL() (columns []string) {
	for which, has := range b.place.has {
		if has {
			columns = append(columns, b.lockOf(placeLock(which)).UnlockSQL())
		}
	}
	return columns
}

// nextLine is the lock in whose line the bid waits for what is missing or, if nothing is, that of
// the last lock.
func (b *bid) nextLine() lockkey.ID {
	next := b.cfg.Claim.IDs[len(b.cfg.Claim.IDs)-1]
	if missing := b.missing(); len(missing) > 0 {
		next = missing[0].ID
	}
	return b.cfg.Claim.lineFor(next)
}

// leaveLine gives up the place in line, and then sends the queries also.
func (b *bid) leaveLine(ctx context.Context, also ...string) error {
	err := b.send(ctx, append(selectQueries(b.leaveSQL()), also...)...)
	clear(b.place.has[:])
	return err
}

// leaveQueries leave the line, and free all marks, if the bid has any of that.
func (b *bid) leaveQueries() []string {
	return selectQueries(slices.Concat(b.leaveSQL(), b.listener.freeMarksSQL()))
}

// forgetPlace forgets the place in line and the marks, once leaveQueries were sent. If the server
// rejects another query of that message, they are carried out all the same. A burst sends only
// leaveSQL: its waiter has one line, and so no common marks.
func (b *bid) forgetPlace() {
	clear(b.place.has[:])
	b.listener.noteUnmarked()
}
