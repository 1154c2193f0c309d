package lock

import (
	"context"
	"slices"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
)

// place is a bid's place in line, and the server's locks that it has for that.
type place struct {
	claim    *Claim     // the bid's
	line     lockkey.ID // the lock in whose line it stands, or stood last; zero if it never did
	ticket   uint32     // the lower half of the ticket's number
	held     [placeLockCount]bool
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

// lock is one of those locks.
func (p *place) lock(which placeLock) advisory.Lock {
	ticket := advisory.TicketOf(p.line, p.ticket, p.claim.Shared)
	switch which {
	case markLock:
		return advisory.MarkOf(ticket)
	case gateLock:
		if p.claim.Gate != nil {
			return advisory.Exclusive(*p.claim.Gate)
		}
		return advisory.GateOf(p.line) // against readers
	case callLock:
		return advisory.CallOf(p.line)
	}
	return ticket
}

// joined says whether the bid stands in line, or has stood there.
func (p *place) joined() bool { return p.line != lockkey.ID{} }

// nextLine is the lock in whose line the bid waits for what is missing.
func (b *Bid) nextLine() lockkey.ID {
	next := b.cfg.Claim.IDs[len(b.cfg.Claim.IDs)-1]
	if missing := b.missing(); len(missing) > 0 {
		next = missing[0].ID
	}
	return b.cfg.Claim.lineFor(next)
}

// leaveSQL are SQL expressions that free the locks that the bid has for its place. The lock
// of a call is among them: it must not be kept for as long as the command runs, since each dormant
// waiter that hears a call looks. A holder that calls takes it anew (Held.call).
func (p *place) leaveSQL() (columns []string) {
	for which, held := range p.held {
		if held {
			columns = append(columns, p.lock(placeLock(which)).UnlockSQL())
		}
	}
	return columns
}

// noteFreed notes that the locks of the place were freed. The arrival lock is apart
// (EndArrival).
func (p *place) noteFreed() { p.held = [placeLockCount]bool{} }

// leaveLine gives up the place in line, and then sends the queries also.
func (b *Bid) leaveLine(ctx context.Context, also ...string) error {
	err := b.send(ctx, append(selectQuery(b.place.leaveSQL()), also...)...)
	b.place.noteFreed()
	return err
}

// leaveQuery is the query that leaves the line, and frees all marks, if the bid has any of that.
func (b *Bid) leaveQuery() []string {
	return selectQuery(slices.Concat(b.place.leaveSQL(), b.knowledge.freeCommonSQL()))
}

// noteLeft notes that leaveQuery was sent. If the server rejects another query of that message,
// this one is carried out all the same.
func (b *Bid) noteLeft() {
	b.place.noteFreed()
	b.knowledge.commonMarks = nil
}
