package lock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// ledgerStart is a start that asks the ledger, and may have to wait. It asks, acts on the answer,
// and asks again.
type ledgerStart struct {
	start
	proof ledger.Proof
	delay time.Duration // which the announcements call for
	// since is the time from which certainly nobody else has had the locks. With a quorum it is
	// zero until the standbys have confirmed that.
	since time.Time
}

// startInLedger draws the token and starts the run in the ledger, once no command of an earlier run
// is alive.
func (b start) startInLedger(ctx context.Context) error {
	a := ledgerStart{start: b, delay: b.grant.delay}
	if !b.cfg.Session.Quorum {
		a.since = time.Now()
	}
	a.proof = ledger.Proof{Sure: b.grant.startsAtOnce(), Closes: make([]int64, len(b.grant.Locks))}
	if _, blind := b.knowledge.undischarged(b.grant.Locks); blind && !a.proof.Sure {
		if err := a.waitAsWithout(ctx); err != nil {
			return err
		}
	}
	for {
		answer, err := a.ask(ctx)
		switch {
		case err != nil && a.vanished(ctx, err):
			return b.startWithoutLedger(ctx, max(b.grant.delay, a.delay))
		case err != nil:
			return ledgerError(err)
		case answer.Kind == ledger.Begun:
			a.noteBegun()
			return nil
		}
		if err := a.heed(ctx, answer); err != nil {
			return err
		}
	}
}

// waited is how long certainly nobody else has had the locks.
func (a *ledgerStart) waited() time.Duration {
	if a.since.IsZero() {
		return 0
	}
	return time.Since(a.since)
}

// ask draws the token, and asks the ledger with it whether the run may start. It does not wait.
func (a *ledgerStart) ask(ctx context.Context) (ledger.Answer, error) {
	a.noteEvidence()
	grant := &a.grant
	if err := a.drawAndAnnounce(ctx); err != nil {
		return ledger.Answer{}, err
	}
	switch {
	case !grant.recorded:
		text, err := a.askLedger(ctx)
		if err != nil {
			return ledger.Answer{}, err
		}
		return ledger.ParseAnswer(text, len(grant.Locks), a.cfg.Ledger.Tick)
	case len(a.proof.Heard) > 0:
		// The burst and this start were one request, and while it ran another
		// start was heard. The ledger has to say whether it knows of that one.
		a.proof.Closes[0] = max(a.proof.Closes[0], grant.Token)
		grant.undraw()
		return a.ask(ctx)
	}
	return ledger.Answer{Kind: ledger.Begun}, nil
}

// noteEvidence puts into the proof what has been announced so far, and whether the locks have
// been held for long enough.
func (a *ledgerStart) noteEvidence() {
	locks := a.grant.Locks
	if !a.proof.Sure && (a.knowledge.verdictOnAll(locks).Delay == 0 || a.waited() >= a.delay) {
		a.proof.Sure = true
	}
	a.proof.Heard = nil
	if a.proof.Sure {
		return
	}
	heard, _ := a.knowledge.undischarged(locks)
	for _, token := range heard {
		if !slices.Contains(a.proof.Closes, token) {
			a.proof.Heard = append(a.proof.Heard, token)
		}
	}
}

// noteBegun notes that the run has started in the ledger. It decides whether the run may say at its
// end that no earlier command is alive either. The ledger alone is no evidence for that: roles
// without access to it leave no rows in it.
func (a *ledgerStart) noteBegun() {
	b := a.start
	b.grant.recorded = true
	if b.cfg.Session.Transaction && !b.cfg.Session.Quorum && !b.cfg.OfList {
		b.s.DropSecond()
	}
	if a.waited() < a.delay {
		v := b.knowledge.verdictOnAll(b.grant.Locks)
		b.grant.coversEarlier = v.Delay == 0 && v.CoversEarlier
	}
}

// heed does what an answer asks for. After that the ledger is asked again.
func (a *ledgerStart) heed(ctx context.Context, answer ledger.Answer) error {
	switch answer.Kind {
	case ledger.Unknown:
		if a.proof.Sure {
			return session.NotPostgreSQL()
		}
		return a.waitAsWithout(ctx)
	case ledger.OpenRuns:
		return a.waitForOpenRuns(ctx, answer.Lost)
	}
	if err := a.withdraw(ctx); err != nil {
		return err
	}
	if paused := (*ledger.PausedError)(nil); errors.As(answer.Refusal, &paused) {
		a.namePaused(ctx, paused)
	}
	return answer.Refusal
}

// waitAsWithout waits as if there were no ledger.
func (a *ledgerStart) waitAsWithout(ctx context.Context) error {
	err := a.waitOut(ctx, a.delay-a.waited())
	a.proof.Sure = true
	if a.cfg.Session.Quorum {
		a.since = time.Time{} // it is older than the commit that waitOut witnessed
	}
	return err
}

// waitForOpenRuns waits until the commands of the ledger's open runs are dead: for as
// long as their settings require, or until their ends are announced.
func (a *ledgerStart) waitForOpenRuns(ctx context.Context, open []ledger.OpenRun) error {
	b := a.start
	if a.since.IsZero() {
		if err := b.s.Witness(ctx); err != nil {
			return err
		}
		a.since = time.Now()
	}
	var rest time.Duration
	var host string
	for _, run := range open {
		h := b.knowledge.evidence[b.grant.Locks[run.Lock].ID]
		left := max(b.cfg.LockDelay, run.Outlives()) - a.waited()
		if b.cfg.LockDelay == 0 || left <= 0 || h != nil && h.KnowsDead(run.Token) {
			a.proof.Closes[run.Lock] = max(a.proof.Closes[run.Lock], run.Token)
			continue
		}
		if left > rest {
			rest, host = left, run.Host
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
		open, err := b.number(ctx, ledger.OpenRunsQuery(b.cfg.ledgerLocks(b.grant.Locks), b.cfg.Claim.shared()))
		return open == 0, err
	})
	return err
}

// askLedgerEvery is how often the ledger is asked whether it has the end of the last
// run. After a loss that run's process needs a new session to note its end.
const askLedgerEvery = 250 * time.Millisecond

// askLedger sends the question, and returns the text of the answer.
func (a *ledgerStart) askLedger(ctx context.Context) (string, error) {
	b, proof := a.start, a.proof
	beside := b.cfg.Session.UsesSecondSession()
	if beside {
		proof.Backend = b.s.BackendPID()
	}
	start := b.cfg.ledgerRun().StartWithProofSQL(b.cfg.ledgerLocks(b.grant.Locks), b.cfg.Claim.shared(), b.grant.Token, b.grant.SystemID, proof) +
		", " + b.s.AsIsSQL()
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
		// A connection from a pooler may have any defaults.
		queries = []string{"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", queries[0], "COMMIT"}
	}
	rows, err := s.Query(ctx, queries...)
	if err != nil {
		return "", err
	}
	row, err := rows.Only(3)
	if err != nil {
		return "", err
	}
	return row[0], nil
}

// vanished says whether an error means that the ledger is gone, or that access was revoked,
// so that the run may go on without it.
func (a *ledgerStart) vanished(ctx context.Context, err error) bool {
	if !session.Undefined(err) && !session.HasCode(err, session.InsufficientPrivilege) {
		return false
	}
	return a.s.AskLedgerQuestion(ctx) == nil && !a.usesLedger()
}

// startWithoutLedger goes on without a ledger that was there, unless the run requires one.
func (b start) startWithoutLedger(ctx context.Context, delay time.Duration) error {
	if _, err := b.cfg.Ledger.Applies(b.s.LedgerAnswer()); err != nil {
		return err
	}
	b.cfg.Log.Warn("the ledger is gone, or not granted any more; going on without", "event", "ledger")
	if err := b.waitOut(ctx, delay); err != nil {
		return err
	}
	return b.drawAndAnnounce(ctx)
}
