package lock

import (
	"context"
	"fmt"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// A session that listens takes marks, which show holders that somebody listens: only then do they
// announce their starts and clean ends. It does so in this order:
//
//	LISTEN       so that it misses nothing that is said to it
//	the marks    each start from now on is announced; an earlier one may not have been
//	a look       shows who has the lock now
//
// With a mark the session learns the position of the write-ahead log. If a clean end shows a later
// position, its holder still had the lock after the mark was taken (Evidence.NoteMark), even if the
// look came too late to see it.
//
// A bid that stands in line for one lock, or for slots, takes the mark of its ticket. A bid without
// a line takes the common mark of each lock. A bid in line for several locks takes both. Without a
// mark no end counts (package evidence). Holders also count the marks, to find out whether those in
// line have to be called.

// markQueries take the marks that a listening session lacks, if there are any, in one query with a
// column for each; note reads its answer. No listener keeps another from a mark, but a stranger
// can.
func (b *bid) markQueries() (queries []string, note func(answer session.Rows)) {
	common := b.listener.missingMarks(b.place.everJoined())
	var marks []string
	for _, id := range common {
		marks = append(marks, takenSQL(advisory.CommonMarkOf(id).TrySQL()))
	}
	if b.place.everJoined() && b.listener.on && !b.place.has[markLock] {
		marks = append(marks, b.ticketMarkSQL())
	}
	return selectQueries(marks), func(answer session.Rows) {
		row, err := answer.Only(len(marks))
		for i := range marks {
			switch {
			case err != nil || row[i] == "":
			case i < len(common):
				b.listener.tookMark(common[i], evidence.ParseLSN(row[i]))
			default:
				b.tookTicketMark(evidence.ParseLSN(row[i]))
			}
		}
	}
}

// takenSQL is an SQL expression that tries for a mark. Its value is the write-ahead log's position
// just after that, or NULL.
func takenSQL(try string) string {
	return fmt.Sprintf("CASE WHEN %s THEN pg_catalog.pg_current_wal_insert_lsn() END", try)
}

// ticketMarkSQL is takenSQL for the mark of this session's ticket, if that is one of the first.
func (b *bid) ticketMarkSQL() string {
	mark := advisory.TryNumberSQL(b.cfg.Claim.Shared, advisory.MarkNumberSQL(b.place.line))
	return fmt.Sprintf(`(SELECT %s FROM (
	SELECT objid, pid, row_number() OVER (ORDER BY %s, pid) AS rank FROM pg_catalog.pg_lock_status()
	WHERE locktype = 'advisory' AND `+advisory.InThisDatabaseSQL+` AND %s AND objid <> '%d' AND %s AND granted) AS waiting
WHERE pid = pg_catalog.pg_backend_pid() AND rank <= %d)`,
		takenSQL(mark), advisory.PlaceSQL(), advisory.InLinesSQL(b.place.line), advisory.CommonTicket, advisory.IsTicketSQL, crowd.MostListeners)
}

// tookTicketMark notes that the waiter got the mark of its ticket, which is for the locks to which
// its line leads.
func (b *bid) tookTicketMark(at evidence.LSN) {
	b.place.has[markLock] = true
	for id, e := range b.listener.evidence {
		if b.cfg.Claim.lineFor(id) == b.place.line {
			e.NoteMark(at)
		}
	}
}

// A waiter that was just refused does not listen yet: its LISTEN is its next message. A brief
// command may end in between, and its holder would find nobody to tell. Then the waiter would get
// the lock without evidence, and hold it for the lock-delay. So a refused first try that a wait may
// follow takes the arrival lock in the same expression, and the waiter frees it once it listens. A
// holder that is done waits for that, if nobody listened when its token was drawn. This is for
// speed: the promise does not depend on it. A run that arrives just after a brief command's end may
// still wait for the lock-delay: 3 of 200 pairs of `true` did; without the arrival lock it was 12
// of 50. With a ledger only runs that waited together for the end of a pause wait so.

// arrivedQueries free the arrival lock, if the bid has it.
func (b *bid) arrivedQueries() []string {
	if !b.place.arriving {
		return nil
	}
	return []string{"SELECT " + advisory.ArrivalOf(b.nextLine()).UnlockSQL()}
}

// endArrival frees the arrival lock, if the bid has it and will not listen.
func (b *bid) endArrival(ctx context.Context) error {
	err := retryCanceledFunc(func() error { return b.send(ctx, b.arrivedQueries()...) })
	b.place.arriving = false
	return err
}

// arrivalPatience is how long a holder waits for arriving waiters.
const arrivalPatience = "200ms"

// awaitArrivalsQueries wait until nobody is arriving for any of the locks, and fail at the first
// lock for which that takes longer than arrivalPatience: another program may hold the arrival lock
// for ever. With a ledger there are none: it says how a holder ended. Nor with a quorum, where nobody
// arrives.
func (h *Held) awaitArrivalsQueries() []string {
	if !h.audience.nobody || h.record.begun() {
		return nil
	}
	columns := []string{fmt.Sprintf("pg_catalog.set_config('lock_timeout', '%s', true)", arrivalPatience)}
	for _, line := range h.cfg.Claim.lines() {
		alone := advisory.Exclusive(advisory.ArrivalOf(line).ID) // free if nobody is arriving
		columns = append(columns, alone.AwaitXactSQL())
	}
	return selectQueries(columns)
}

// isArrivalTimeout says whether a release's error is that of awaitArrivalsQueries, whose answer is
// the first: it took too long, or the server has no memory for one more lock.
func (h *Held) isArrivalTimeout(err error, answers []session.Rows) bool {
	return session.HasCode(err, session.LockNotAvailable, session.OutOfMemory) && len(h.awaitArrivalsQueries()) > 0 && len(answers[0]) == 0
}
