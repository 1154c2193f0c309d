package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/advisory"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// A ledger in the database says how the last run ended, also to a first try and to a
// waiter that has heard nothing. Announcements still count, since other pgleads may not
// be granted the ledger. After a start that was announced, and that the ledger lacks, a
// run waits as without a ledger.

// usesLedger says whether the run goes by a ledger.
func (b *Bid) usesLedger() bool {
	use, err := b.cfg.Ledger.Applies(b.s.LedgerAnswer())
	return use && err == nil
}

// ledgerRun is what the ledger is told about this run.
func (cfg *Config) ledgerRun() ledger.Run {
	d := cfg.Description
	return ledger.Run{
		Host: d.Host, User: d.User, Command: d.Command, PID: d.PID,
		Lease: cfg.Session.Lease, Grace: cfg.LostGrace, Tick: cfg.Ledger.Tick,
	}
}

// ledgerLocks are locks of the claim in the ledger's form.
func (cfg *Config) ledgerLocks(locks []advisory.Lock) (as []ledger.Lock) {
	for _, l := range locks {
		i := slices.Index(cfg.Claim.Locks, l)
		as = append(as, ledger.Lock{ID: l.ID, Key: cfg.Claim.Key(i)})
	}
	return as
}

// startsWithToken says whether the start of these locks' run can be part of the
// statement that draws the token.
func (b *Bid) startsWithToken(locks []advisory.Lock) bool {
	if len(locks) != 1 || locks[0].Shared || b.cfg.Session.UsesSecondSession() || !b.usesLedger() {
		return false
	}
	tokens, blind := b.undischarged(locks)
	return len(tokens) == 0 && !blind
}

// warmUp makes a start without a token, which starts nothing, for one of the first in line.
// The session then has read what the first start of each session reads: between two commands
// that would take 0.7 ms. If the ledger can't answer, the start itself will say why.
func (w *waiter) warmUp(ctx context.Context) error {
	locks := w.cfg.Claim.Locks
	if w.warm || locks[0].Shared || w.cfg.Session.Quorum || !w.usesLedger() {
		return nil
	}
	w.warm = true
	err := w.send(ctx, "SELECT "+w.cfg.ledgerRun().First(w.cfg.ledgerLocks(locks)[0], "NULL", "NULL"))
	if answeredError(err) == nil {
		return err
	}
	return nil
}

// undischarged are the tokens of starts that were heard without their ends; blind says
// that some of the tokens aren't known.
func (b *Bid) undischarged(locks []advisory.Lock) (tokens []int64, blind bool) {
	if b.cfg.LockDelay == 0 {
		return nil, false
	}
	for _, l := range locks {
		if h := b.knowledge.heard[l.ID]; h != nil {
			more, unknown := h.Undischarged()
			tokens, blind = append(tokens, more...), blind || unknown
		}
	}
	return tokens, blind
}

// ledgerStart is a start that asks the ledger, and may have to wait.
type ledgerStart struct {
	proof   ledger.Proof
	demands time.Duration // the delay that the announcements call for
	// since is the time from which nobody else has had the locks for certain. With a quorum it is
	// zero until the standbys have confirmed that.
	since time.Time
}

// waited is how long nobody else has had the locks for certain.
func (a *ledgerStart) waited() time.Duration {
	if a.since.IsZero() {
		return 0
	}
	return time.Since(a.since)
}

// drawAndStart draws the token and starts the run in the ledger, once no command of an
// earlier run is alive. It asks the ledger, does what the answer asks for, and asks again.
func (b *Bid) drawAndStart(ctx context.Context) error {
	a := ledgerStart{demands: b.grant.delay}
	if !b.cfg.Session.Quorum {
		a.since = time.Now()
	}
	a.proof = ledger.Proof{Sure: b.grant.startsAtOnce(), Closes: make([]int64, len(b.grant.Locks))}
	if _, blind := b.undischarged(b.grant.Locks); blind && !a.proof.Sure {
		if err := b.waitAsWithoutLedger(ctx, &a); err != nil {
			return err
		}
	}
	for {
		answer, err := b.askToStart(ctx, &a)
		switch {
		case err != nil && b.vanished(ctx, err):
			return b.withoutLedger(ctx, max(b.grant.delay, a.demands))
		case err != nil:
			return b.ledgerError(err)
		case answer.Kind == ledger.Begun:
			b.noteStart(&a)
			return nil
		}
		if err := b.heedAnswer(ctx, &a, answer); err != nil {
			return err
		}
	}
}

// askToStart draws the token, and asks the ledger with it whether the run may start. It does not wait.
func (b *Bid) askToStart(ctx context.Context, a *ledgerStart) (ledger.Answer, error) {
	b.noteEvidence(a)
	if err := b.draw(ctx); err != nil {
		return ledger.Answer{}, err
	}
	switch {
	case !b.grant.recorded:
		return b.sendStart(ctx, a.proof)
	case len(a.proof.Heard) > 0:
		// The many tries were one request with this start, and meanwhile another
		// start was heard. The ledger has to say whether it knows of that one.
		a.proof.Closes[0] = max(a.proof.Closes[0], b.grant.Token)
		b.grant.undraw()
		return b.askToStart(ctx, a)
	}
	return ledger.Answer{Kind: ledger.Begun}, nil
}

// noteStart notes that the run has started in the ledger. It finds out whether the run may say at its
// end that no earlier command is alive either. The ledger alone is no evidence for that: roles that are
// not granted it leave no rows in it.
func (b *Bid) noteStart(a *ledgerStart) {
	b.grant.recorded = true
	if b.cfg.Session.Transaction && !b.cfg.Session.Quorum && !b.cfg.OfList {
		b.s.DropSecond()
	}
	if a.waited() < a.demands {
		v := b.verdictOnAll(b.grant.Locks)
		b.grant.coversEarlier = v.Delay == 0 && v.CoversEarlier
	}
}

// noteEvidence puts into the proof what has been announced by now, and whether the locks have
// been held for long enough.
func (b *Bid) noteEvidence(a *ledgerStart) {
	if !a.proof.Sure && (b.verdictOnAll(b.grant.Locks).Delay == 0 || a.waited() >= a.demands) {
		a.proof.Sure = true
	}
	a.proof.Heard = nil
	if a.proof.Sure {
		return
	}
	heard, _ := b.undischarged(b.grant.Locks)
	for _, token := range heard {
		if !slices.Contains(a.proof.Closes, token) {
			a.proof.Heard = append(a.proof.Heard, token)
		}
	}
}

// waitAsWithoutLedger waits as without a ledger.
func (b *Bid) waitAsWithoutLedger(ctx context.Context, a *ledgerStart) error {
	err := b.waitOut(ctx, a.demands-a.waited())
	a.proof.Sure = true
	if b.cfg.Session.Quorum {
		a.since = time.Time{} // it is older than the commit that waitOut witnessed
	}
	return err
}

// heedAnswer does what an answer asks for. After that the start is asked for again.
func (b *Bid) heedAnswer(ctx context.Context, a *ledgerStart, answer ledger.Answer) error {
	switch answer.Kind {
	case ledger.Unknown:
		if a.proof.Sure {
			return session.ErrNotPostgreSQL()
		}
		return b.waitAsWithoutLedger(ctx, a)
	case ledger.OpenRuns:
		return b.waitForOpenRuns(ctx, a, answer.Lost)
	}
	if err := b.withdraw(ctx); err != nil {
		return err
	}
	return answer.Refusal
}

// waitForOpenRuns waits until the commands of the ledger's open runs are dead: for as
// long as their settings call for, or until there is word of their ends.
func (b *Bid) waitForOpenRuns(ctx context.Context, a *ledgerStart, lost []ledger.OpenRun) error {
	if a.since.IsZero() {
		if err := b.s.Witness(ctx); err != nil {
			return err
		}
		a.since = time.Now()
	}
	var rest time.Duration
	var host string
	for _, l := range lost {
		h := b.knowledge.heard[b.grant.Locks[l.Lock].ID]
		need := max(b.cfg.LockDelay, l.Need()) - a.waited()
		if b.cfg.LockDelay == 0 || need <= 0 || h != nil && h.KnowsDead(l.Token) {
			a.proof.Closes[l.Lock] = max(a.proof.Closes[l.Lock], l.Token)
			continue
		}
		if need > rest {
			rest, host = need, l.Host
		}
	}
	if rest == 0 {
		a.proof.Waited = a.waited()
		return nil
	}
	if err := b.beginDelay(ctx, rest); err != nil {
		return err
	}
	_, err := b.hold(ctx, rest, "lock granted, and the ledger knows of no end of its last run on "+visible.Text(host)+"; waiting", func() (bool, error) {
		open, err := b.number(ctx, ledger.Open(b.cfg.ledgerLocks(b.grant.Locks), b.shared()))
		return open == 0, err
	})
	return err
}

// askLedgerEvery is the time between two questions whether the ledger has the end of the last
// run. After a loss its process needs a new session to note that.
const askLedgerEvery = 250 * time.Millisecond

// sendStart asks the ledger whether the run may start, once the token is drawn.
func (b *Bid) sendStart(ctx context.Context, proof ledger.Proof) (ledger.Answer, error) {
	text, err := b.askLedger(ctx, proof)
	if err != nil {
		return ledger.Answer{}, err
	}
	return ledger.ParseAnswer(text, len(b.grant.Locks), b.cfg.Ledger.Tick)
}

// askLedger returns the text of the ledger's answer.
func (b *Bid) askLedger(ctx context.Context, proof ledger.Proof) (string, error) {
	beside := b.cfg.Session.UsesSecondSession()
	if beside {
		proof.Backend = b.s.BackendPID()
	}
	start := b.cfg.ledgerRun().Rest(b.cfg.ledgerLocks(b.grant.Locks), b.shared(), b.grant.Token, b.grant.SystemID, proof)
	if b.cfg.Session.Quorum {
		row, err := b.s.Commit(ctx, start+", pg_catalog.set_config('synchronous_commit', 'on', true)")
		if err != nil || len(row) == 0 {
			return "", err
		}
		return row[0], nil
	}
	queries := []string{"SELECT " + start + ", pg_catalog.set_config('synchronous_commit', 'local', true)"}
	s := b.s
	if beside {
		var err error
		if s, err = b.s.Second(ctx); err != nil {
			return "", err
		}
		// What a pooler gives may have any defaults.
		queries = []string{"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", queries[0], "COMMIT"}
	}
	rows, err := s.Query(ctx, queries...)
	if err != nil {
		return "", err
	}
	row, err := rows.Only(2)
	if err != nil {
		return "", err
	}
	return row[0], nil
}

// vanished says whether an error means that the ledger is gone, or not granted any more,
// so that the run may go on without.
func (b *Bid) vanished(ctx context.Context, err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || !slices.Contains([]string{"42501", "42883", "42P01", "3F000"}, pgErr.Code) {
		return false
	}
	return b.s.AskLedgerQuestion(ctx) == nil && !b.usesLedger()
}

// withoutLedger goes on without a ledger, unless the run requires one.
func (b *Bid) withoutLedger(ctx context.Context, delay time.Duration) error {
	if _, err := b.cfg.Ledger.Applies(b.s.LedgerAnswer()); err != nil {
		return err
	}
	b.cfg.Log.Warn("the ledger is gone, or not granted any more; going on without", "event", "ledger")
	if err := b.waitOut(ctx, delay); err != nil {
		return err
	}
	return b.draw(ctx)
}

// ledgerError makes an error of the ledger one of this package. A run that waits rides
// out those that pass by themselves.
func (b *Bid) ledgerError(err error) error {
	if errors.Is(err, session.ErrSilent) { // the ledger waits 3 s for a lock, which a short lease has not
		return fmt.Errorf("%w while the ledger is to note the start (has another session locked its tables?)", err)
	}
	pgErr := answeredError(err)
	if pgErr == nil {
		return err
	}
	if locked := ledger.Locked(err); locked != nil {
		return &LedgerError{err: locked}
	}
	says := session.ServerSays(pgErr)
	switch pgErr.Code {
	case "40001", "40P01", "25006": // others are in the way, or the server is read-only
		return &LedgerError{Says: says, err: session.Errorf(session.Unreachable, "", "the ledger: %s", says)}
	}
	return &LedgerError{Says: says, err: ledger.Rejected(err)}
}

// LedgerError says that the ledger can't be written. The session is well.
type LedgerError struct {
	Says string // what the server says, or nothing if the error explains itself
	err  error
}

func (e *LedgerError) Error() string { return e.err.Error() }
func (e *LedgerError) Unwrap() error { return e.err }
