package lock

import (
	"context"
	"fmt"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/session"
)

// A waiter that was just refused does not listen yet: its LISTEN is its next message. A brief
// command may end in between, and its holder would find nobody to tell. Then the waiter would get
// the lock without evidence, and hold it for the lock-delay. So a refused first try that a wait may
// follow takes the arrival lock in the same expression, and the waiter frees it once it listens. A
// holder that is done waits for that, if nobody listened when its token was drawn. This is for
// speed: the promise does not depend on it.

// arrivedQuery is the query that frees the arrival lock, if the bid has it.
func (b *Bid) arrivedQuery() (query []string) {
	if b.place.arriving {
		query = []string{"SELECT " + advisory.ArrivalOf(b.nextLine()).UnlockSQL()}
	}
	return query
}

// EndArrival frees the arrival lock, if the bid has it and will not listen.
func (b *Bid) EndArrival(ctx context.Context) error {
	err := b.send(ctx, b.arrivedQuery()...)
	b.place.arriving = false
	return err
}

// arrivalMost is how long a holder waits for arriving waiters.
const arrivalMost = "200ms"

// awaitArrivalsQuery is a query that waits until nobody is arriving for any of the locks. It fails
// at the first lock for which that takes longer than arrivalMost: another program may hold the
// arrival lock for ever. With a ledger it isn't needed: the ledger says how a holder ended.
func (g *Grant) awaitArrivalsQuery() (query []string) {
	if g.listened || g.recorded {
		return nil
	}
	columns := []string{fmt.Sprintf("pg_catalog.set_config('lock_timeout', '%s', true)", arrivalMost)}
	for _, l := range g.Locks {
		alone := advisory.Exclusive(advisory.ArrivalOf(g.cfg.Claim.lineFor(l.ID)).ID) // free if nobody is arriving
		columns = append(columns, alone.AwaitXactSQL())
	}
	return selectQuery(columns)
}

// isArrivalTimeout says whether an error is that of awaitArrivalsQuery: it took too long, or the
// server has no memory for one more lock.
func (g *Grant) isArrivalTimeout(err error) bool {
	return answeredError(err) != nil && session.HasCode(err, session.LockNotAvailable, session.OutOfMemory) && len(g.awaitArrivalsQuery()) > 0
}
