package lock

import (
	"context"
	"fmt"

	"github.com/pglead/pglead/runner/lock/advisory"
)

// A waiter that was refused can't hear yet: its LISTEN is its next message. A brief command may end
// in between, and its holder would find nobody to tell. Then the waiter would get the lock without
// evidence, and hold it for the lock-delay. So a try that is refused takes the arrival
// in the same expression. The waiter gives it back once it listens. A holder
// that is done waits for that, if nobody listened when its token was drawn. This is for speed: the
// promise does not depend on it.

// arrivedQuery is the query that gives the arrival back, if the bid has it.
func (b *Bid) arrivedQuery() (query []string) {
	if b.arriving {
		query = []string{"SELECT " + advisory.ArrivalOf(b.nextLine()).UnlockSQL()}
	}
	return query
}

// EndArrival gives the arrival back, if the bid has it, for one that will not listen.
func (b *Bid) EndArrival(ctx context.Context) error {
	err := b.send(ctx, b.arrivedQuery()...)
	b.arriving = false
	return err
}

// arrivalMost is how long a holder waits for those who are arriving.
const arrivalMost = "200ms"

// awaitArrivalsQueries is a query for each lock that waits until nobody is arriving, or fails after
// arrivalMost. With a ledger nobody has to hear how a holder ended.
func (g *grant) awaitArrivalsQueries() (queries []string) {
	if g.listened || g.recorded {
		return nil
	}
	for _, l := range g.Locks {
		alone := advisory.Exclusive(advisory.ArrivalOf(g.cfg.Claim.lineFor(l.ID)).ID) // free if nobody is arriving
		queries = append(queries, fmt.Sprintf("SELECT pg_catalog.set_config('lock_timeout', '%s', true), %s", arrivalMost, alone.AwaitXactSQL()))
	}
	return queries
}

// waitedInVain says whether an error is that of awaitArrivalsQueries.
func (g *grant) waitedInVain(err error) bool {
	const lockNotAvailable = "55P03"
	e := answeredError(err)
	return e != nil && e.Code == lockNotAvailable && len(g.awaitArrivalsQueries()) > 0
}
