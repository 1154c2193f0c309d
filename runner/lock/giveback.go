package lock

import (
	"context"
	"errors"
	"slices"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// Locks under which no command was started are given back. These free locks, outside an exchange:
//
//	                     when                                        waiters hear
//	Held.Release         after the command                           clean, or left
//	giveBack             no command was started. The bid may go on   clean, if the start was
//	                                                                 announced (mayAnnounceEnd)
//	giveBackAndLeave     the same, and it leaves the line            the same
//	freeAfterRejection   the server has rejected a list's query      nothing
//
// Attempt's GiveBack uses whichever of the first two fits.

// giveBack frees locks under which no command was started.
func (b *bid) giveBack(ctx context.Context) error {
	b.listener.noteGivenBack(b.Locks())
	return b.unlock(ctx)
}

// giveBackAndLeave gives the locks back and leaves the line, since the command must not start. The
// session's end would do that, too, but a moment later: the next run in a script could still find
// the locks held.
func (b *bid) giveBackAndLeave(ctx context.Context) error {
	err := b.unlock(ctx, b.leaveQueries()...)
	b.forgetPlace()
	return err
}

// unlock frees what was granted, and then sends the queries also.
func (b *bid) unlock(ctx context.Context, also ...string) error {
	queries, locks := append(b.giveBackQueries(), also...), b.Locks()
	b.forgetGrants()
	return b.cfg.freeAfterRejection(ctx, b.session, b.send(ctx, queries...), locks)
}

// freeAfterRejection frees what a list's session may still hold of these locks, if the server has
// rejected a query with err: an unlock that was canceled has freed nothing, and a try for a lock or
// a mark that was canceled, or followed by an error, may have taken it. No command runs under any
// of them, and other commands may need the session, and keep the locks with it, for a long time. If
// that works, it returns nil. If there is nothing to free, since the server has rejected nothing,
// or since this is no list, it returns err. If it fails, it returns an error that is never waited
// out: the list has to end, and its session with it.
func (cfg *Config) freeAfterRejection(ctx context.Context, s *session.Session, err error, locks []advisory.Lock) error {
	if !cfg.ofList || session.AnsweredError(err) == nil {
		return err
	}
	var queries []string
	for _, l := range locks {
		queries = append(queries, "SELECT "+l.UnlockSQL()+fromLocksSQL+areOwnSQL+" AND "+advisory.AmongSQL([]lockkey.ID{l.ID}))
	}
	if cfg.Session.Transaction {
		queries = []string{"ROLLBACK"}
	}
	if err = retryCanceled(ctx, s, queries...); session.AnsweredError(err) == nil {
		return err
	}
	return errors.New("free the locks under which no command runs: " + session.Rejected(err, "unlock").Error())
}

// mayAnnounceEnd says whether locks under which no command was started may be given back with an
// announcement. The start has to be announced, and no earlier command may be alive, since a waiter
// that hears of the end starts at once. After a delay that was waited out nothing is announced
// either.
func (b *bid) mayAnnounceEnd() bool {
	return b.token != 0 && !b.delayed && !slices.ContainsFunc(b.grants, func(g grant) bool { return g.verdict.Delay > 0 })
}

// giveBackQueries are the queries that give the locks back, stop the run in the ledger if it has
// started there and, if they may, announce a clean end.
func (b *bid) giveBackQueries() []string {
	if len(b.grants) == 0 {
		return nil
	}
	record := b.recordQueries(ledger.End{Outcome: ledger.Stopped}, "off")
	if b.cfg.Session.Transaction {
		return append([]string{"ROLLBACK"}, b.cfg.toWrite(record)...)
	}
	var announce []string
	if b.mayAnnounceEnd() {
		announce = b.announceEndQueries()
	}
	return slices.Concat(record, announce, []string{b.unlockQuery()})
}
