package lock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// Where the database has a ledger, that says how the last run ended: to a first try,
// and to one who has heard nothing. What is announced still counts, since there may be
// pgleads that are not granted the ledger: a start that was heard of, and that the
// ledger lacks, is waited out as without one.

// usesLedger says whether the run goes by a ledger.
func (b *Bid) usesLedger() bool {
	use, err := b.cfg.Ledger.Found(b.s.Probed())
	return use && err == nil
}

// ledgerRun is what the ledger is told of this one.
func (cfg *Config) ledgerRun() ledger.Run {
	d := cfg.Description
	return ledger.Run{
		Host: d.Host, User: d.User, Command: d.Command, PID: d.PID,
		Lease: cfg.Session.Lease, Grace: cfg.Session.LostGrace, Tick: cfg.Ledger.Tick,
	}
}

// ledgerLocks are locks of the claim, as the ledger has them.
func (cfg *Config) ledgerLocks(locks []Lock) (as []ledger.Lock) {
	for _, l := range locks {
		i := slices.Index(cfg.Claim.Locks, l)
		as = append(as, ledger.Lock{ID: l.ID, Key: cfg.Ledger.Key(i, len(cfg.Claim.Locks))})
	}
	return as
}

// startsWithToken says whether the start of these locks' run can be part of the
// statement that draws the token.
func (b *Bid) startsWithToken(locks []Lock) bool {
	if len(locks) != 1 || locks[0].Shared || b.cfg.Session.Quorum || b.cfg.Session.Transaction || !b.usesLedger() {
		return false
	}
	tokens, blind := b.undischarged(locks)
	return len(tokens) == 0 && !blind
}

// warmUp has the session of one of the first in line read what it needs for a start, as
// each does the first time: between two commands that would take 0.7 ms. It is a start
// without a token, which starts nothing. What keeps the ledger from answering is for
// the start itself to say.
func (l *line) warmUp(ctx context.Context) error {
	b := l.b
	locks := b.cfg.Claim.Locks
	if l.warm || locks[0].Shared || b.cfg.Session.Quorum || b.cfg.Session.Transaction || !b.usesLedger() {
		return nil
	}
	l.warm = true
	_, err := b.s.Ask(ctx, session.Request{
		SQL:    []string{"SELECT " + b.cfg.ledgerRun().First(b.cfg.ledgerLocks(locks)[0], "NULL", "NULL")},
		Longer: fencePatience,
	})
	if errors.As(err, new(*pgconn.PgError)) && !errors.As(err, new(*session.LostError)) {
		return nil
	}
	return b.error(err)
}

// undischarged are the tokens of those who have been heard to start, and not to end;
// blind says that there are some whose tokens aren't known.
func (b *Bid) undischarged(locks []Lock) (tokens []int64, blind bool) {
	if b.cfg.LockDelay == 0 {
		return nil, false
	}
	for _, l := range locks {
		if h := b.histories[l.ID]; h != nil {
			more, unknown := h.undischarged()
			tokens, blind = append(tokens, more...), blind || unknown
		}
	}
	return tokens, blind
}

// startAttempt is a start that may have to wait.
type startAttempt struct {
	proof     ledger.Proof
	demands   time.Duration // by what was announced
	since     time.Time     // from then on nobody else has had the locks
	witnessed bool          // with a quorum: that the standbys have seen it
}

// drawAndStart draws the token and starts the run in the ledger, when nothing of those before
// is alive.
func (b *Bid) drawAndStart(ctx context.Context) error {
	w := startAttempt{since: time.Now(), witnessed: !b.cfg.Session.Quorum, demands: b.grant.delay}
	w.proof = ledger.Proof{Sure: b.grant.delay == 0, Closes: make([]int64, len(b.grant.locks))}
	if _, blind := b.undischarged(b.grant.locks); blind && !w.proof.Sure {
		if err := b.waitAsWithoutLedger(ctx, &w); err != nil {
			return err
		}
	}
	for {
		b.noteEvidence(&w)
		err := b.draw(ctx)
		if err == nil && b.grant.recorded {
			b.noteCoverage(&w)
			return nil
		}
		var answer ledger.Answer
		if err == nil {
			answer, err = b.ask(ctx, w.proof)
		}
		switch {
		case err != nil && b.vanished(ctx, err):
			b.grant.delay = max(b.grant.delay, w.demands)
			return b.withoutLedger(ctx)
		case err != nil:
			return b.ledgerError(err)
		case answer.Kind == ledger.Begun:
			b.grant.recorded = true
			b.noteCoverage(&w)
			if b.cfg.Session.Transaction && !b.cfg.Session.Quorum && !b.cfg.Claim.Polled {
				b.s.DropSecond()
			}
			return nil
		}
		if err := b.obey(ctx, &w, answer); err != nil {
			return err
		}
	}
}

// noteCoverage finds out whether this run may say at its end that no earlier command is
// alive either. The ledger alone is no ground for that: roles that are not granted it
// leave no rows in it.
func (b *Bid) noteCoverage(w *startAttempt) {
	if w.demands == 0 || w.witnessed && time.Since(w.since) >= w.demands {
		return
	}
	v := b.verdictOf(b.grant.locks)
	b.grant.coversEarlier = v.delay == 0 && v.coversEarlier
}

// noteEvidence takes note of what has been announced, or waited for, by now.
func (b *Bid) noteEvidence(w *startAttempt) {
	if !w.proof.Sure && (b.verdictOf(b.grant.locks).delay == 0 || w.witnessed && time.Since(w.since) >= w.demands) {
		w.proof.Sure = true
	}
	w.proof.Heard = nil
	if w.proof.Sure {
		return
	}
	heard, _ := b.undischarged(b.grant.locks)
	for _, token := range heard {
		if !slices.Contains(w.proof.Closes, token) {
			w.proof.Heard = append(w.proof.Heard, token)
		}
	}
}

// waitAsWithoutLedger waits as without a ledger.
func (b *Bid) waitAsWithoutLedger(ctx context.Context, w *startAttempt) error {
	b.grant.delay = w.demands
	if w.witnessed {
		b.grant.delay -= time.Since(w.since)
	}
	err := b.waitOut(ctx)
	w.proof.Sure = true
	w.witnessed = !b.cfg.Session.Quorum // what has been waited counts from before that
	return err
}

// obey does what an answer asks for. After that the start is asked for again.
func (b *Bid) obey(ctx context.Context, w *startAttempt, answer ledger.Answer) error {
	switch answer.Kind {
	case ledger.Unknown:
		if w.proof.Sure {
			return session.ErrNotPostgreSQL()
		}
		return b.waitAsWithoutLedger(ctx, w)
	case ledger.OpenRuns:
		return b.waitForOpenRuns(ctx, w, answer.Lost)
	}
	return b.withdraw(ctx, answer.Refusal)
}

// waitForOpenRuns waits until what the ledger knows to have started is dead: for as long as its
// holder's settings call for, or until there is word of its end.
func (b *Bid) waitForOpenRuns(ctx context.Context, w *startAttempt, lost []ledger.OpenRun) error {
	if !w.witnessed {
		if err := b.s.Witness(ctx); err != nil {
			return err
		}
		w.since, w.witnessed = time.Now(), true
	}
	var rest time.Duration
	var host string
	for _, l := range lost {
		h := b.histories[b.grant.locks[l.Lock].ID]
		need := max(b.cfg.LockDelay, l.Need()) - time.Since(w.since)
		if b.cfg.LockDelay == 0 || need <= 0 || h != nil && h.buries(l.Token) {
			w.proof.Closes[l.Lock] = max(w.proof.Closes[l.Lock], l.Token)
			continue
		}
		if need > rest {
			rest, host = need, l.Host
		}
	}
	if rest == 0 {
		w.proof.Waited = time.Since(w.since)
		return nil
	}
	b.grant.undraw() // that token is not for what starts then
	b.s.Keep()
	b.grant.delay = rest
	if err := b.announceDelay(ctx); err != nil {
		return err
	}
	_, err := b.hold(ctx, "lock granted, and the ledger knows of no end of its last run on "+visible.Text(host)+"; waiting", func() (bool, error) {
		open, err := b.number(ctx, ledger.Open(b.cfg.ledgerLocks(b.grant.locks), b.shared()))
		return open == 0, err
	})
	return err
}

// Between two looks at the ledger, whether the last run's end has been noted: its
// survivor needs a new session for that.
const ledgerLooks = 250 * time.Millisecond

// ask asks the ledger whether the run may start, on the session that has drawn the
// token.
func (b *Bid) ask(ctx context.Context, proof ledger.Proof) (ledger.Answer, error) {
	text, err := b.answer(ctx, proof)
	if err != nil {
		return ledger.Answer{}, err
	}
	return ledger.ParseAnswer(text, len(b.grant.locks), b.cfg.Ledger.Tick)
}

func (b *Bid) answer(ctx context.Context, proof ledger.Proof) (string, error) {
	beside := b.cfg.Session.Quorum || b.cfg.Session.Transaction
	if beside {
		proof.Backend = b.s.BackendPID()
	}
	start := b.cfg.ledgerRun().Rest(b.cfg.ledgerLocks(b.grant.locks), b.shared(), b.grant.tenure.Token, b.grant.tenure.SystemID, proof)
	if b.cfg.Session.Quorum {
		row, err := b.s.Commit(ctx, "SELECT "+session.StandbysNow+", "+start+", pg_catalog.set_config('synchronous_commit', 'on', true)")
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
	answers, err := s.Ask(ctx, session.Request{SQL: queries, Longer: fencePatience})
	if err != nil {
		return "", err
	}
	rows := slices.Concat(answers...)
	if len(rows) != 1 || len(rows[0]) != 2 {
		return "", session.ErrNotPostgreSQL()
	}
	return rows[0][0], nil
}

// fencePatience is more than a start waits for a transaction of the last run.
const fencePatience = 5 * time.Second

// withdraw gives the locks back, since the command must not start, and leaves the line.
func (b *Bid) withdraw(ctx context.Context, why error) error {
	if err := b.GiveBack(ctx); err != nil {
		return err
	}
	if queries := b.leaving(); len(queries) > 0 {
		if _, err := b.s.Query(ctx, queries...); err != nil {
			return b.error(err)
		}
	}
	return why
}

// vanished says of an error that the ledger is there no more, or that the role is
// granted it no more, and that the run may go on without.
func (b *Bid) vanished(ctx context.Context, err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || !slices.Contains([]string{"42501", "42883", "42P01", "3F000"}, pgErr.Code) {
		return false
	}
	return b.s.Probe(ctx) == nil && !b.usesLedger()
}

// withoutLedger goes on as if there had been none, if that will do.
func (b *Bid) withoutLedger(ctx context.Context) error {
	if _, err := b.cfg.Ledger.Found(b.s.Probed()); err != nil {
		return err
	}
	b.cfg.Log.Warn("the ledger is gone, or not granted any more; going on without", "event", "ledger")
	if err := b.waitOut(ctx); err != nil {
		return err
	}
	return b.draw(ctx)
}

// ledgerError sorts what keeps the ledger from answering: what passes by itself is
// waited out by one who waits.
func (b *Bid) ledgerError(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || errors.As(err, new(*session.LostError)) {
		return err
	}
	switch pgErr.Code {
	case "55P03", "40001", "40P01", "25006": // locked for longer than its patience, or read-only
		return &LedgerError{session.Errorf(session.Unreachable, "is somebody altering its tables, or copying them?", "the ledger: %s", session.ServerSays(pgErr))}
	}
	return &LedgerError{ledger.Refused(err)}
}

// LedgerError says that the ledger can't be written. The session is well.
type LedgerError struct{ err error }

func (e *LedgerError) Error() string { return e.err.Error() }
func (e *LedgerError) Unwrap() error { return e.err }
