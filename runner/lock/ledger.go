package lock

import (
	"errors"
	"fmt"
	"slices"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// A ledger in the database says how the last run ended, even to a first try and to a
// waiter that has heard nothing. Announcements still count, since other pgleads may not have
// access to the ledger. If a start was announced that the ledger does not know, a
// run waits as it would without a ledger.

// ledgerRun is what the ledger is told about this run.
func (cfg *Config) ledgerRun() ledger.Run {
	d := cfg.Description
	return ledger.Run{
		Host: d.Host, User: d.User, Command: d.Command, PID: d.PID,
		Lease: cfg.Session.Lease, LostGrace: cfg.LostGrace, Tick: cfg.Ledger.Tick,
	}
}

// ledgerLocks are locks of the claim in the ledger's form.
func (cfg *Config) ledgerLocks(locks []advisory.Lock) (as []ledger.Lock) {
	for _, l := range locks {
		i := slices.Index(cfg.Claim.IDs, l.ID)
		as = append(as, ledger.Lock{ID: l.ID, Key: cfg.Claim.Key(i)})
	}
	return as
}

// drawStartsRun says whether the start of these locks' run can be part of the statement that draws
// the token: that of one lock, without readers, if no start is known to be open.
func (b *bid) drawStartsRun(locks []advisory.Lock) bool {
	if len(locks) != 1 || b.cfg.Claim.Shared || !b.startsOnOwn() {
		return false
	}
	tokens, incomplete := b.openStarts(locks)
	return len(tokens) == 0 && !incomplete
}

// openStarts are the tokens of the starts that are open, as far as was heard, and of those that are
// unended from an earlier session, unless there is evidence enough to start at once; incomplete says
// that some tokens aren't known.
func (b *bid) openStarts(locks []advisory.Lock) (tokens []int64, incomplete bool) {
	if b.cfg.LockDelay == 0 {
		return nil, false
	}
	for _, l := range locks {
		more, unknown := b.listener.evidence[l.ID].OpenStarts()
		tokens, incomplete = append(tokens, more...), incomplete || unknown
		if b.verdictOn(l.ID).Delay > 0 {
			tokens = append(tokens, b.listener.unended[l.ID]...)
		}
	}
	return tokens, incomplete
}

// ledgerError turns an error of the ledger into one of this package. A waiting run survives an
// error that passes by itself.
func (b *bid) ledgerError(err error) error {
	if errors.Is(err, session.ErrSilent) { // the ledger waits for a lock for up to 3 s, longer than a short lease
		return fmt.Errorf("%w while the ledger is to note the start (has another session locked its tables?)", err)
	}
	pgErr := session.AnsweredError(err)
	switch {
	case pgErr == nil:
		return err
	case pgErr.Code == session.LockNotAvailable && pgErr.Where == "": // no function of the ledger waited, but the commit, for its NOTIFY
		return b.cfg.Claim.rejected(err)
	}
	rejected := b.rejectedByLedger(err)
	switch pgErr.Code {
	case session.SerializationFailure, session.DeadlockDetected, session.ReadOnlySQLTransaction: // others are in the way, or the server is read-only
		rejected = session.Errorf(session.Unreachable, "", "%s", rejected.Error())
	}
	return &LedgerError{rejected}
}

// rejectedByLedger turns an error of the server into one that names the ledger.
func (b *bid) rejectedByLedger(err error) error {
	return ledger.Rejected(err, session.Target(b.cfg.Session.Database))
}

// LedgerError says that the ledger can't be written. The session itself is fine:
// abandon gives the locks back on it, and a run that waits begins again.
type LedgerError struct{ err error }

func (e *LedgerError) Error() string { return e.err.Error() }
func (e *LedgerError) Unwrap() error { return e.err }
