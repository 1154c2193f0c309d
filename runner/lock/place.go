package lock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock/advisory"
)

// place is the server's locks that a bid has because it stands in line, or is about to.
type place struct {
	line     lockkey.ID // the lock in whose line it stands, or stood last; zero if it never did
	ticketed bool
	ticket   uint32 // the lower half of the ticket's number
	marked   bool   // as one that listens
	gated    bool   // it holds the gate
	calling  bool   // it calls the dormant waiters
	arriving bool   // it has the arrival lock: it is about to join the line
}

// inLine says whether the bid stands in line, or has stood there.
func (p *place) inLine() bool { return p.line != lockkey.ID{} }

// nextLine is the lock in whose line the bid waits for what is missing.
func (b *Bid) nextLine() lockkey.ID {
	next := b.cfg.Claim.Locks[len(b.cfg.Claim.Locks)-1]
	if missing := b.missing(); len(missing) > 0 {
		next = missing[0]
	}
	return b.cfg.Claim.lineFor(next.ID)
}

// ticketLock is the ticket as a lock.
func (b *Bid) ticketLock() advisory.Lock {
	return advisory.TicketOf(b.place.line, b.place.ticket, b.cfg.Claim.shared())
}

// mostTickets is how many numbers are tried. No more waiters than that can come in 10 ms.
const mostTickets = 4000

// ticketQuery takes the first number from now on, by the server's clock, that nobody
// else has. Readers may share one.
func (w *waiter) ticketQuery() string {
	from := advisory.TicketNowSQL
	if w.place.ticket != 0 { // it has been there before
		from = strconv.FormatUint(uint64(w.place.ticket), 10) + "::bigint"
	}
	return fmt.Sprintf(`SELECT t & 4294967295 FROM pg_catalog.generate_series(%[1]s, %[1]s + %[2]d) AS t
WHERE CASE WHEN t & 4294967295 <> %[3]d THEN %[4]s END LIMIT 1`,
		from, mostTickets, advisory.CommonTicket, advisory.TryNumberSQL(w.cfg.Claim.shared(), advisory.TicketNumberSQL(w.place.line, "t")))
}

// gate is the lock by which the first in line keeps newcomers out: the claim's gate or,
// against readers, the gate of the lock itself.
func (b *Bid) gate() advisory.Lock {
	if gate := b.cfg.Claim.Gate; gate != nil {
		return advisory.Exclusive(*gate)
	}
	return advisory.GateOf(b.place.line)
}

// leaveLineSQL are SQL expressions that give back the ticket, its mark, the gate and the call, as far as the
// bid has them. A holder that calls takes the call anew (Held.call): those who are dormant look at each call
// that they hear, which may not last as long as the command.
func (b *Bid) leaveLineSQL() (columns []string) {
	if b.place.ticketed {
		columns = append(columns, b.ticketLock().UnlockSQL())
	}
	if b.place.marked {
		columns = append(columns, advisory.MarkOf(b.ticketLock()).UnlockSQL())
	}
	if b.place.gated {
		columns = append(columns, b.gate().UnlockSQL())
	}
	if b.place.calling {
		columns = append(columns, advisory.CallOf(b.place.line).UnlockSQL())
	}
	return columns
}

// noteLeftLine notes that all four were given back.
func (p *place) noteLeftLine() {
	p.ticketed, p.marked, p.gated, p.calling = false, false, false, false
}

// leaveLine gives all of them back. Other queries follow.
func (b *Bid) leaveLine(ctx context.Context, also ...string) error {
	err := b.send(ctx, append(selectQuery(b.leaveLineSQL()), also...)...)
	b.place.noteLeftLine()
	return err
}

// leaveAndUnmarkQuery is the query that leaves the line and gives the common marks back, if the bid
// has them.
func (b *Bid) leaveAndUnmarkQuery() []string {
	return selectQuery(slices.Concat(b.leaveLineSQL(), b.knowledge.unmarkSQL()))
}

// noteLeftAndUnmarked notes that leaveAndUnmarkQuery was sent. If the server rejects another query
// of that message, this one is carried out all the same.
func (b *Bid) noteLeftAndUnmarked() {
	b.place.noteLeftLine()
	b.knowledge.marks = nil
}

// endGhostQuery is the query that ends the candidate's previous session, if the server still
// has it, as after a partition: that session would keep its place in line, and the lock, if that was
// granted to it last. It is identified by its number and its ticket.
func (w *waiter) endGhostQuery() (query []string) {
	c := w.candidate
	if c.ghost == 0 || w.cfg.Claim.shared() { // readers may share a ticket
		return nil
	}
	lines, _ := w.cfg.Claim.audience(w.cfg.Claim.Locks)
	return []string{fmt.Sprintf(`SELECT pg_catalog.pg_terminate_backend(pid, %d) FROM pg_catalog.pg_lock_status()
WHERE locktype = 'advisory' AND %s AND %s AND objid = '%d' AND %s AND granted AND pid = %d AND pid <> pg_catalog.pg_backend_pid()`,
		ghostMost.Milliseconds(), advisory.InThisDatabase, advisory.InLinesOf(lines...), c.ticket, advisory.IsTicket, c.ghost)}
}

// ghostMost is how long the server waits for a session that it was told to end.
const ghostMost = time.Second
