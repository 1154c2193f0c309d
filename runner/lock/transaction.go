package lock

import (
	"cmp"
	"context"
	"errors"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// With --transaction the locks belong to a transaction and not to a session, so that a pooler can
// serve them: it leaves a connection to its client for as long as a transaction lasts. There is no
// line, and no announcement. A second session draws the token (token_second.go).
//
// Through a pooler the server need not start a process for a run, which makes the run quicker, and
// one that is refused most of all.

// tryInTransaction begins the transaction that holds the locks.
//
// It first makes the same try in a statement of its own, whose end frees what it got. With many
// waiters nearly all tries are refused. This way a refused try keeps none of the pooler's
// connections until a ROLLBACK, and needs no second login. After a success the preparation
// goes on in parallel with the questions that follow.
func (b *bid) tryInTransaction(ctx context.Context) (bool, error) {
	won, err := b.askTry(ctx)
	if err != nil {
		return false, err
	}
	if !b.cfg.Claim.fulfilledBy(won) {
		return b.addGrants(nil), nil
	}
	b.preparation.begin()
	granted := false
	// A run that waits asks again here, too: after an error it would open a new session, and know of
	// no holder's end.
	err = askForRoom(ctx, b.cfg.Session.ConnectTimeout, func() (err error) {
		granted, err = b.beginAndDraw(ctx)
		return err
	})
	return granted, err
}

// beginAndDraw begins the transaction, tries, and draws the token on the second session, which is
// opened before the lock is held.
//
// A pooler may have as many connections to the server as runs begin at once. Then each of them
// would have one, and wait for a second, and so would the application whose pool it is. So each
// waits for a while, gives its own back, and begins again. (With a quorum the session depends on
// the second one, and ends with it.)
func (b *bid) beginAndDraw(ctx context.Context) (bool, error) {
	if _, err := b.Session.Second(ctx); err != nil {
		return false, err
	}
	value, err := b.Session.Begin(ctx, b.trySQL())
	if err != nil {
		return false, b.cfg.Claim.rejected(err)
	}
	won, err := b.readTry(value)
	if err != nil {
		return false, err
	}
	if !b.cfg.Claim.fulfilledBy(won) {
		if err := b.send(ctx, "ROLLBACK"); err != nil {
			return false, err
		}
		return b.addGrants(nil), nil
	}
	b.addGrants(won)
	noSecond := session.NoSecondError()
	brief := ctx
	if !b.cfg.Session.Quorum {
		most := min(leasetime.HolderShare(b.cfg.Session.Lease), b.cfg.Session.ConnectTimeout) / 2 // askForRoom asks again for the ConnectTimeout
		var cancel context.CancelFunc
		brief, cancel = context.WithTimeoutCause(ctx, pace.Between(most/2, most), noSecond)
		defer cancel()
	}
	if err = b.drawOnSecond(brief); err == nil {
		return true, nil
	}
	b.forgetGrants()
	late, stop := lateAfter(ctx)
	defer stop()
	failed := b.send(late, "ROLLBACK")
	if errors.Is(err, noSecond) {
		b.Session.DropSecond() // its request is still under way
	}
	return false, cmp.Or(failed, err)
}

// askBeside asks the ledger on the second session, beside the transaction that has the locks. It is
// one message: if somebody canceled a BEGIN of its own, the start would go on without it, and if a
// COMMIT, no other could follow.
func (b *bid) askBeside(ctx context.Context, query string) ([]string, error) {
	second, err := b.Session.Second(ctx)
	if err != nil {
		return nil, err
	}
	row, err := second.Row(ctx, 3, session.ToWrite+query)
	if errors.Is(err, session.ErrSilent) {
		err = session.NoSecondError()
	}
	return row, err
}

// endTransaction releases the locks, and announces nothing. If the server rejects a query, such as
// the COMMIT, since somebody has canceled it, the locks are free all the same, and the end has
// still to be recorded.
func (h *Held) endTransaction(ctx context.Context) error {
	answers, err := h.askAtEnd(ctx, session.Request{SQL: append(h.record.queries(h.record.end, h.endCommit()), "COMMIT")})
	switch {
	case err == nil:
		h.checkRecorded(answers...)
		return nil
	case session.AnsweredError(err) == nil:
		return err
	}
	// A list's next transaction could not begin in a failed one, which would also keep one of the
	// pooler's connections from the session that records the end.
	_ = retryCanceled(ctx, h.Session, "ROLLBACK")
	if h.record.owes() {
		h.recordAgain(ctx, err)
	}
	return nil
}
