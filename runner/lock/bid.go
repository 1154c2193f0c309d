package lock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// bid is a claim on a session, as far as it has been granted. Once it has settled, Held has it.
type bid struct {
	Session *session.Session
	cfg     Config

	place    place                      // in line, if it is a waiter's; the session's reader writes to its mark
	listener *listener                  // what it knows of others
	guard    *guardStart                // for the command
	show     func(describe.Description) // puts it into the session's comment

	grants  []grant // so far, in the order of the claim
	delayed bool    // a delay has begun since the first grant
	drawn           // the token, once it is drawn

	coversEarlier bool       // a clean end means that the commands of all earlier holders are dead, too
	prefers       string     // the host that is to have the lock next, or nothing
	end           ledger.End // of the command
}

// newBid returns a bid on a session, which it does not close, with what that session knows of
// others.
func newBid(l *listener, cfg Config, start StartGuard) *bid {
	return &bid{
		Session: l.s, cfg: cfg, listener: l, guard: newGuardStart(l.s, start),
		show: func(d describe.Description) { l.s.SetComment(d.Comment()) },
	}
}

// complete says whether the bid holds all that the claim asks for.
func (b *bid) complete() bool { return b.cfg.Claim.fulfilledBy(b.Locks()) }

// missing are the locks that the claim still asks for.
func (b *bid) missing() []advisory.Lock {
	if b.cfg.Claim.takesAny() {
		return b.cfg.Claim.locks()
	}
	return b.cfg.Claim.locks()[len(b.grants):]
}

// try takes the missing locks, one after the other, up to the first that somebody else
// has. It says whether it got any, and returns at once. The bid keeps what it got
// while it waits for the rest. In a transaction, or with Config.Wait 0, try takes all
// or nothing. With a gate it takes any one. A list's session goes on after a try that the server
// has rejected.
func (b *bid) try(ctx context.Context) (granted bool, err error) {
	if b.cfg.Session.Transaction {
		granted, err = b.tryInTransaction(ctx)
	} else if won, failed := b.askTry(ctx); failed == nil {
		granted = b.noteTry(won)
	} else {
		err = failed
	}
	if failed := b.cfg.freeRejected(ctx, b.Session, err, b.mayHave()); failed != nil {
		err = failed
	}
	return granted, err
}

// mayHave are the locks that a list's session may have after a try that the server has rejected.
func (b *bid) mayHave() []advisory.Lock {
	return append(b.cfg.Claim.locks(), advisory.ArrivalOf(b.nextLine()))
}

// askTry makes a try. The answer to the first one may have come with the login (firstTrySQL).
func (b *bid) askTry(ctx context.Context) (won []advisory.Lock, err error) {
	value, known := b.Session.TakeFirstTry()
	if !known {
		row, err := b.Session.Row(ctx, 1, "SELECT "+b.trySQL())
		if err != nil {
			return nil, b.cfg.Claim.rejected(err)
		}
		value = row[0]
	}
	return b.readTry(value)
}

// readTry reads the value of trySQL or firstTrySQL. Its number tells how many of the missing locks
// were taken or, with a gate, which one; and whether a refused try took the arrival lock.
func (b *bid) readTry(value string) (won []advisory.Lock, err error) {
	number, err := strconv.Atoi(value)
	n, arrived := advisory.SplitArrival(number)
	missing := b.missing()
	switch {
	case err != nil || n > len(missing):
		return nil, session.NotPostgreSQL()
	case b.cfg.Claim.takesAny() && n > 0:
		return missing[n-1 : n], nil
	}
	b.place.arriving = b.place.arriving || arrived
	return missing[:n], nil
}

// trySQL is an SQL expression that takes what is missing, as try describes it. readTry reads its
// value.
func (b *bid) trySQL() string {
	if b.cfg.ofList && !b.listener.on {
		return b.cfg.firstTrySQL()
	}
	return b.cfg.tryMissingSQL(b.missing(), b.place.everJoined())
}

func (cfg *Config) tryMissingSQL(missing []advisory.Lock, inLine bool) string {
	claim := cfg.Claim
	switch {
	case cfg.Session.Transaction:
		return claim.tryXactSQL()
	case claim.takesAny() && !inLine:
		return advisory.ThroughSQL(advisory.Exclusive(*claim.Gate), advisory.TryEachSQL(claim.locks(), advisory.Lock.TryInTurnSQL), "0")
	case claim.takesAny():
		return advisory.TryEachSQL(claim.locks(), advisory.Lock.TryInTurnSQL)
	case cfg.Wait == 0 && len(missing) == len(claim.IDs):
		return advisory.TryAllOrNoneSQL(claim.locks())
	}
	return advisory.TryAllSQL(missing, advisory.Lock.TryInTurnSQL)
}

// firstTrySQL is the SQL expression of the first try. It travels with the login, in the same round
// trip, as session.Config.FirstTry, and askTry takes the answer from the session. There are three
// exceptions. A list's session serves many bids, so each sends its own first try. With a quorum the
// lock is not tried for before the second session is open (session.Open). A returning candidate has
// a place in line, and must not overtake those before it (Candidate.acquireOnce), so it makes none.
func (cfg *Config) firstTrySQL() string {
	if cfg.Wait > 0 && cfg.announces() {
		return advisory.TryOrArriveSQL(cfg.Claim.locks(), cfg.Claim.Gate)
	}
	return cfg.tryMissingSQL(cfg.Claim.locks(), false)
}

// noteTry notes which locks a try has won, and that others have what it did not get. Every grant
// comes through here, from try, tryInBurst, tryInTransaction and noteExchange. The try itself is
// sent with the login (firstTrySQL), or by askTry, burstQuery, Session.Begin or
// exchange.freeAndTryQuery. Then complete says whether it is the whole claim, areListed whether
// pg_locks agrees, and settle when a command may start. The verdict on each lock says how long the
// last holder's command may be alive.
func (b *bid) noteTry(won []advisory.Lock) (some bool) {
	for _, l := range won {
		g := grant{Lock: l, verdict: b.verdictOn(l.ID)}
		if !b.cfg.Session.Quorum {
			g.since = time.Now()
		}
		b.grants = append(b.grants, g)
	}
	if refused := b.missing(); !b.complete() {
		if b.cfg.keepsPart() {
			refused = refused[:1] // the try stopped there
		}
		b.listener.noteRefused(refused)
	}
	return len(won) > 0
}

// These free locks, outside an exchange:
//
//	                   when                                        waiters hear
//	Held.Release       after the command                           clean, or left
//	giveBack           no command was started. The bid may go on   clean, if the start was
//	                                                               announced (mayAnnounceEnd)
//	giveBackAndLeave   the same, and it leaves the line            the same
//	freeRejected       the server has rejected a list's query      nothing
//
// Attempt's GiveBack and PutOff use whichever of the first two fits.

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
	b.noteLeft()
	return err
}

// unlock frees what was granted, and then sends the queries also.
func (b *bid) unlock(ctx context.Context, also ...string) error {
	queries, locks := append(b.giveBackQueries(), also...), b.Locks()
	b.noteFreed()
	return b.cfg.freeRejected(ctx, b.Session, b.send(ctx, queries...), locks)
}

// freeRejected frees what a list's session may still hold of these locks, if the server has
// rejected a query with err: an unlock that was canceled has freed nothing, and a try for a lock or
// a mark that was canceled, or followed by an error, may have taken it. No command runs under any
// of them, and other commands may need the session, and keep the locks with it, for a long time.
// If that works, it returns nil. If there is nothing to free, since the server has rejected nothing,
// or since this is no list, it returns err. If it fails, it returns an error that is never waited
// out: the list has to end, and its session with it.
func (cfg *Config) freeRejected(ctx context.Context, s *session.Session, err error, locks []advisory.Lock) error {
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
	if err = insist(ctx, s, queries...); session.AnsweredError(err) == nil {
		return err
	}
	return errors.New("free the locks under which no command runs: " + session.Rejected(err, "unlock").Error())
}

// insist sends queries again if they are canceled, a few times.
func insist(ctx context.Context, s *session.Session, queries ...string) error {
	return insistOn(func() error {
		_, err := s.Query(ctx, queries...)
		return err
	})
}

// insistOn asks again if what it asks is canceled, a few times.
func insistOn(ask func() error) error {
	err := ask()
	for again := 0; again < 3 && session.HasCode(err, session.QueryCanceled); again++ {
		err = ask()
	}
	return err
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
	record := b.recordQueries(ledger.End{Outcome: ledger.Stopped}, "off")
	if b.cfg.Session.Transaction {
		return append([]string{"ROLLBACK"}, record...)
	}
	var announce []string
	if b.mayAnnounceEnd() {
		announce = b.announceEndQueries()
	}
	return slices.Concat(record, announce, []string{b.unlockQuery()})
}
