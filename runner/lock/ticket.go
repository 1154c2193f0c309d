package lock

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock/advisory"
)

// The lower half of a ticket's number says when its owner came to the lock's line.

// placeSQL is an SQL expression for a ticket's place in line: its distance from now, as a signed number
// of 32 bits. The lower half of its number is a time in units of 10 ms, which wraps every 497 days.
func placeSQL() string {
	now := uint32(time.Now().UnixMilli() / 10)
	return fmt.Sprintf("((objid::bigint - %d + 2147483648) & 4294967295)", now)
}

func (b *Bid) lineClass() uint32 { return lockkey.Ticket(b.nextLine()) }

// ticketLock is the ticket as a lock.
func (b *Bid) ticketLock() advisory.Lock {
	return advisory.TicketOf(b.line, b.ticket, b.shared())
}

// mostTickets is how many numbers are tried. No more waiters can come in 10 ms.
const mostTickets = 4000

// ticketQuery takes the first number from now on, by the server's clock, that nobody
// else has. Readers may share one.
func (w *waiter) ticketQuery() string {
	from := "(extract(epoch FROM pg_catalog.clock_timestamp()) * 100)::bigint"
	if w.ticket != 0 { // it has been there before
		from = strconv.FormatUint(uint64(w.ticket), 10) + "::bigint"
	}
	number := fmt.Sprintf("(%d)::bigint << 32 | (t & 4294967295)", int32(lockkey.Ticket(w.line)))
	return fmt.Sprintf(`SELECT t & 4294967295 FROM pg_catalog.generate_series(%[1]s, %[1]s + %[2]d) AS t
WHERE CASE WHEN t & 4294967295 <> %[3]d THEN %[4]s END LIMIT 1`,
		from, mostTickets, advisory.CommonTicket, advisory.TryNumberSQL(w.shared(), number))
}

// endGhostQuery is the query that ends the candidate's session before this one, if the server still
// has it, as after a partition: it would keep its place in line, and the lock, if that was granted to
// it last. It is known by its number and its ticket.
func (w *waiter) endGhostQuery() (query []string) {
	c := w.candidate
	if c.ghost == 0 || w.shared() { // readers may share a ticket
		return nil
	}
	lines, _ := w.cfg.Claim.classes(w.cfg.Claim.Locks)
	return []string{fmt.Sprintf(`SELECT pg_catalog.pg_terminate_backend(pid, %d) FROM pg_catalog.pg_lock_status()
WHERE locktype = 'advisory' AND %s AND classid IN (%s) AND objid = '%d' AND objsubid = 1 AND granted AND pid = %d AND pid <> pg_catalog.pg_backend_pid()`,
		ghostMost.Milliseconds(), inspect.InThisDatabase, lines, c.ticket, c.ghost)}
}

// ghostMost is how long the server waits for the end of a session that it is told to end.
const ghostMost = time.Second
