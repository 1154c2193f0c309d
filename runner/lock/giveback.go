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
//	                       when                                      waiters hear
//	Held.Release           after the command                         clean, or left
//	Held.EncodedRelease    the same, by the guard                    the same
//	giveBack               no command was started. The bid may go    clean, if the start was
//	                       on                                        announced (mayAnnounceEnd)
//	giveBackAndLeave       the same, and it leaves the line          the same
//	freeUnused             the server has rejected a list's query    nothing
//	tryInTransaction,      a transaction did not come as far as      nothing
//	beginAndDraw           to a token
//	openSession            a first try came with a login, and the    nothing
//	                       run requires a ledger that isn't there
//	Session.Close          in any case, also after a loss            nothing, or what a report says
//
// Attempt.GiveBack uses Release if the attempt has settled, otherwise giveBack.

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
	err := b.send(ctx, queries...)
	if b.cfg.mayHoldUnused(err) {
		return b.cfg.freeUnused(ctx, b.Session, locks)
	}
	return err
}

// mayHoldUnused says whether, after this error of an unlock, a list's session may hold locks under
// which no command runs: one that was canceled has freed nothing. Any other session will end.
func (cfg *Config) mayHoldUnused(err error) bool {
	return cfg.ofList && session.AnsweredError(err) != nil
}

// freeUnused frees what the session may hold of these locks: other commands may need it for a long
// time. If that fails, the error is one that is never waited out: the list has to end, and its
// session with it.
func (cfg *Config) freeUnused(ctx context.Context, s *session.Session, locks []advisory.Lock) error {
	var queries []string
	for _, l := range locks {
		queries = append(queries, "SELECT "+l.UnlockSQL()+fromLocksSQL+areOwnSQL+" AND "+advisory.AmongSQL([]lockkey.ID{l.ID}))
	}
	if cfg.Session.Transaction {
		queries = []string{"ROLLBACK"}
	}
	err := retryCanceled(ctx, s, queries...)
	if session.AnsweredError(err) == nil {
		return err
	}
	return errors.New("free the locks under which no command runs: " + session.Rejected(err, "unlock").Error())
}

// mayAnnounceEnd says whether locks under which no command was started may be given back with an
// announcement. The start has to be announced, and no earlier command may be alive, since a waiter
// that hears of the end starts at once. After a delay that was waited out nothing is announced
// either.
func (b *bid) mayAnnounceEnd() bool {
	return b.Token != 0 && !b.delayed && !slices.ContainsFunc(b.grants, func(g grant) bool { return g.verdict.Delay > 0 })
}

// giveBackQueries are the queries that give the locks back, stop the run in the ledger if it has
// started there and, if they may, announce a clean end.
func (b *bid) giveBackQueries() []string {
	if len(b.grants) == 0 {
		return nil
	}
	record := b.record.queries(ledger.End{Outcome: ledger.Stopped}, "off")
	if b.cfg.Session.Transaction {
		return append([]string{"ROLLBACK"}, b.cfg.toWrite(record)...)
	}
	var announce []string
	if b.mayAnnounceEnd() {
		announce = b.announceEndQueries()
	}
	return slices.Concat(record, announce, []string{b.unlockQuery()})
}
