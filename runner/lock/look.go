package lock

import (
	"context"
	"slices"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// A look asks the server for all that it shows of the claim's locks: who has them, and who waits.

// listen makes sure that the bid hears of its locks: it starts to listen, and looks. If it listens
// already, it looks only to find an unknown holder.
func (b *bid) listen(ctx context.Context) error {
	if b.listener.on && !b.listener.unknownHolder {
		return nil
	}
	_, err := b.listenAndLook(ctx)
	return err
}

// listenAndLook starts to collect the announcements about all of the locks, unless the bid listens
// already, and then looks for their holders. In the other order a holder could begin unseen and
// unheard. Other queries are sent in between.
func (b *bid) listenAndLook(ctx context.Context, between ...string) (*evidence.Look, error) {
	return b.look(ctx, append(b.listener.startListening(), between...)...)
}

// look asks the server, after other queries if there are any, and passes the answer to the
// evidence.
func (b *bid) look(ctx context.Context, before ...string) (*evidence.Look, error) {
	b.listener.unknownHolder = false
	b.listener.evidence.LookSent()
	found, ok, listens := &evidence.Look{Sent: boottime.Now()}, false, b.listener.on
	marks, noteMarks := b.markQueries()
	query := evidence.LookQuery(b.cfg.Claim.Sought().Locks, b.nextLine(), crowd.MostListeners)
	queries := slices.Concat(before, marks, []string{query}, b.arrivedQueries())
	_, err := b.Session.Ask(ctx, session.Request{SQL: queries, Then: func(answers []session.Rows) {
		found.Received = boottime.Now()
		if ok = found.Parse(answers[len(before)+len(marks)], b.Session.BackendPID()); !ok || !listens {
			return // what the look shows is no evidence to a bid that would not hear of its end
		}
		noteMarks(answers[len(before)])
		b.listener.evidence.Saw(found)
	}})
	if err != nil {
		return nil, b.cfg.Claim.rejected(err)
	}
	b.place.arriving = false
	if !ok {
		return nil, session.NotPostgreSQL()
	}
	return found, nil
}
