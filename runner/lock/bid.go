package lock

import (
	"context"
	"strconv"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/session"
)

// bid is a claim on a session, as far as it has been granted. Once it has settled, Held has it.
type bid struct {
	Session *session.Session // has the locks: they are lost with it
	cfg     Config

	place       place                      // its locks for a place in line, or for a call; the session's reader sets has[markLock]
	listener    *listener                  // what it knows of others
	preparation *preparation               // for the command
	show        func(describe.Description) // puts it into the session's comment

	grants  []grant // so far, in the order of the claim
	delayed bool    // a delay has begun since the first grant
	drawn           // the token, once it is drawn

	mustNotWait bool // a delay is an error: ErrDelayed

	coversEarlier bool   // a clean end means that the commands of all earlier holders are dead, too
	prefers       string // the host that is to have the lock next, or nothing
}

// newBid returns a bid on a session, which it does not close, with what that session knows of
// others.
func newBid(l *listener, cfg Config, prepare Prepare) *bid {
	return &bid{
		Session: l.s, cfg: cfg, listener: l, preparation: newPreparation(l.s, prepare),
		show: func(d describe.Description) { l.s.SetComment(d.Comment()) },
	}
}

// complete says whether the bid holds all that the claim asks for.
func (b *bid) complete() bool { return b.cfg.Claim.fulfilledBy(b.Locks()) }

// missing are the locks that an incomplete claim still asks for.
func (b *bid) missing() []advisory.Lock { return b.cfg.Claim.locks()[len(b.grants):] }

// try takes the missing locks, one after the other, up to the first that somebody else
// has. It says whether it got any, and returns at once. The bid keeps what it got
// while it waits for the rest. In a transaction, or with Config.Wait 0, try takes all
// or nothing. With a gate it takes any one.
func (b *bid) try(ctx context.Context) (granted bool, err error) {
	if b.cfg.Session.Transaction {
		return b.tryInTransaction(ctx)
	}
	won, err := b.askTry(ctx)
	if err != nil {
		return false, err
	}
	return b.addGrants(won), nil
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

// tryMissingSQL is an SQL expression that tries for these locks, without an arrival. inLine says
// that the gate need not be passed.
func (cfg *Config) tryMissingSQL(missing []advisory.Lock, inLine bool) string {
	claim := cfg.Claim
	switch {
	case cfg.Session.Transaction: // there is no line, and so no gate to pass
		return claim.trySQL(missing, advisory.Lock.TryXactSQL)
	case claim.takesAny() && !inLine:
		return advisory.ThroughSQL(advisory.Exclusive(*claim.Gate), claim.trySQL(missing, advisory.Lock.TryInTurnSQL), "0")
	case cfg.Wait == 0 && len(missing) == len(claim.IDs):
		return advisory.TryAllOrNoneSQL(missing)
	}
	return claim.trySQL(missing, advisory.Lock.TryInTurnSQL)
}

// firstTrySQL is the SQL expression of the first try. It travels with the login, in the same round
// trip, as session.Config.FirstTry, and askTry takes the answer from the session. There are three
// exceptions. A list's session serves many bids, so each sends its own first try. With a quorum the
// lock is not tried for before the second session is open, and a returning candidate, which has a
// place in line, must not overtake those before it (acquireOnce for both).
func (cfg *Config) firstTrySQL() string {
	if cfg.Wait > 0 && cfg.announces() {
		return advisory.TryOrArriveSQL(cfg.Claim.locks(), cfg.Claim.Gate)
	}
	return cfg.tryMissingSQL(cfg.Claim.locks(), false)
}

// addGrants adds the locks that a try has won, and notes that others have what it did not get. It
// returns whether there were any. The verdict on each lock says how long the last holder's command
// may be alive. Every grant comes through here:
//
//	called from   how the try was sent
//	try           by askTry or, if it is the first one, with the login (firstTrySQL)
//	tryInBurst    by the burst
//	beginAndDraw  by Session.Begin
//	readExchange  by the exchange
//
// After that complete says whether it is the whole claim, checkListed whether pg_locks agrees, and
// settle when a command may start.
func (b *bid) addGrants(won []advisory.Lock) (some bool) {
	for _, l := range won {
		g := grant{Lock: l, verdict: b.verdictOn(l.ID)}
		b.listener.evidence[l.ID].NoteGranted()
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
