package lock

import (
	"fmt"

	"github.com/pglead/pglead/lockkey"
)

// A waiter that was refused can't hear yet: its LISTEN is its next message. A brief command may end
// in between, and its holder would find nobody to tell. Then the waiter would get the lock without
// evidence, and hold it for the lock-delay. So a try that is refused takes the arrival, a lock that
// those who come share, in the same expression. The waiter gives it back once it listens. A holder
// that is done waits for that, if nobody listened when its token was drawn. This is for speed: the
// promise does not depend on it.

// arrivalOf is the lock of those who come to a lock's line and don't listen yet.
func arrivalOf(line lockkey.ID) Lock { return Lock{ID: lockkey.Arrival(line), Shared: true} }

// refusedArriving is the result of a first try that was refused, and took the arrival.
const refusedArriving = -1

// tryOrArrive is an SQL expression of a first try that may be followed by a wait.
func tryOrArrive(l Lock) string {
	return fmt.Sprintf("CASE WHEN %s THEN 1 WHEN %s THEN %d ELSE 0 END", l.trySQL(), arrivalOf(l.ID).sql("try_advisory_lock"), refusedArriving)
}

// arrivedQuery gives the arrival back by a query, if the bid has it. The caller has to send it.
func (b *Bid) arrivedQuery() (query []string) {
	if b.arriving {
		b.arriving = false
		query = []string{"SELECT " + arrivalOf(b.cfg.Claim.Locks[0].ID).sql("advisory_unlock")}
	}
	return query
}

// arrivalMost is how long a holder waits for those who are arriving.
const arrivalMost = "200ms"

// awaitArrivalsQueries is a query for each lock that waits until nobody is arriving, or fails after
// arrivalMost. With a ledger nobody has to hear how a holder ended.
func (g *grant) awaitArrivalsQueries() (queries []string) {
	if g.listened || g.recorded || g.cfg.SharedSession || g.cfg.Claim.Gate != nil {
		return nil
	}
	for _, l := range g.Locks {
		arrival := Lock{ID: arrivalOf(l.ID).ID} // not shared: it is free if nobody is arriving
		queries = append(queries, fmt.Sprintf("SELECT pg_catalog.set_config('lock_timeout', '%s', true), %s", arrivalMost, arrival.sql("advisory_xact_lock")))
	}
	return queries
}

// waitedInVain says whether an error is that of awaitArrivalsQueries.
func (g *grant) waitedInVain(err error) bool {
	const lockNotAvailable = "55P03"
	e := answeredError(err)
	return e != nil && e.Code == lockNotAvailable && len(g.awaitArrivalsQueries()) > 0
}
