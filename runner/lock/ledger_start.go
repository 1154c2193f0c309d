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

// ledgerStart is the start of a bid's run by the ledger: it asks whether the run may start, acts on
// the answer, which may be to wait, and asks again. These functions set the fields of the proof:
//
//	OthersDead  startInLedger; noteEvidence, before each question; waitWithoutLedger
//	Heard       noteEvidence, unless OthersDead; it is a doubt: the ledger must know their ends
//	Closes      closeDead, for the open runs that are dead by now; ask, for its own dropped start;
//	            noteEvidence, unless OthersDead: OthersDeadHere for each other lock that needs no
//	            delay
//	Waited      waitForOpenRuns, when all open runs are dead
//	Backend     askLedger
type ledgerStart struct {
	bid   *bid
	proof ledger.Proof
	open  []ledger.OpenRun // of the ledger's latest answer that named some
}

// startInLedger draws the token and starts the run in the ledger, once no command of an earlier run
// is alive.
func (b *bid) startInLedger(ctx context.Context) error {
	start := ledgerStart{bid: b, proof: ledger.Proof{OthersDead: b.reviewGrants() == 0, Closes: make([]int64, len(b.grants))}}
	if _, incomplete := b.openStarts(b.Locks()); incomplete && !start.proof.OthersDead {
		if err := start.waitWithoutLedger(ctx); err != nil {
			return err
		}
	}
	for {
		answer, err := start.ask(ctx)
		if b.lostLedger(ctx, err) {
			return start.withoutLedger(ctx)
		}
		if err != nil {
			return b.ledgerError(err)
		}
		switch answer.Kind {
		case ledger.Started:
			start.noteStarted()
			return nil
		case ledger.Unknown:
			if start.proof.OthersDead {
				return session.NotPostgreSQL()
			}
			err = start.waitWithoutLedger(ctx)
		case ledger.OpenRuns:
			err = start.waitForOpenRuns(ctx, answer.Open)
		case ledger.Refused:
			err = b.giveUpRefused(ctx, answer.Err)
		}
		if err != nil {
			return err
		}
	}
}

// ask draws the token, and asks the ledger with it whether the run may start. It does not wait.
func (l *ledgerStart) ask(ctx context.Context) (ledger.Answer, error) {
	l.noteEvidence()
	if l.bid.record.begun() && len(l.proof.Heard) > 0 {
		// The burst and this start were one request, and while it ran another
		// start was heard. The ledger has to say whether it knows of that one.
		l.proof.Closes[0] = max(l.proof.Closes[0], l.bid.Token)
		l.bid.dropDraw(ctx)
		l.noteEvidence()
	}
	if err := l.bid.drawAndAnnounce(ctx); err != nil {
		return ledger.Answer{}, err
	}
	if l.bid.record.begun() {
		return ledger.Answer{Kind: ledger.Started}, nil
	}
	text, err := l.askLedger(ctx)
	if err != nil {
		return ledger.Answer{}, err
	}
	return ledger.ParseAnswer(text, len(l.bid.grants), l.bid.cfg.Ledger.Tick)
}

// dropDraw forgets what the draw has told: the start needs a later token. What the ledger has
// started with this one is stopped, even if ctx has just ended: otherwise the next start would make
// it a lost run.
func (b *bid) dropDraw(ctx context.Context) {
	if b.record.begun() {
		ctx, cancel := lateAfter(ctx)
		defer cancel()
		_ = retryCanceled(ctx, b.Session, b.record.queries(ledger.End{Outcome: ledger.Stopped}, "off")...)
		if b.Session.Err() != nil {
			return // reportUnstarted stops it
		}
	}
	b.drawn = drawn{}
}

// noteEvidence puts into the proof what has been announced so far, and whether the locks have
// been held for long enough.
func (l *ledgerStart) noteEvidence() {
	l.proof.OthersDead = l.proof.OthersDead || l.bid.reviewGrants() == 0
	l.proof.Heard = nil
	if l.proof.OthersDead {
		return
	}
	heard, _ := l.bid.openStarts(l.bid.Locks())
	for _, token := range heard {
		if !slices.Contains(l.proof.Closes, token) {
			l.proof.Heard = append(l.proof.Heard, token)
		}
	}
	for i := range l.bid.grants {
		if l.proof.Closes[i] > 0 {
			continue
		}
		l.proof.Closes[i] = 0
		if l.bid.review(&l.bid.grants[i]) == 0 {
			l.proof.Closes[i] = ledger.OthersDeadHere
		}
	}
}

// noteStarted notes that the run has started in the ledger. It decides whether the run may say at
// its end that no earlier command is alive either. The ledger alone is no evidence for that: roles
// without access to it leave no rows in it.
func (l *ledgerStart) noteStarted() {
	l.bid.record = record{token: l.bid.Token, owed: l.bid.Locks()}
	for i := range l.bid.grants {
		if g := &l.bid.grants[i]; l.bid.review(g) > 0 {
			g.verdict.CoversEarlier = false
		}
	}
}

// giveUpRefused gives the locks back, and returns the ledger's refusal.
func (b *bid) giveUpRefused(ctx context.Context, refusal error) error {
	late, cancel := lateAfter(ctx)
	defer cancel()
	if err := b.giveBackAndLeave(late); err != nil {
		return err
	}
	if paused := (*ledger.PausedError)(nil); errors.As(refusal, &paused) {
		b.namePaused(ctx, paused)
	}
	return refusal
}

// waitWithoutLedger waits as a bid does that has no ledger.
func (l *ledgerStart) waitWithoutLedger(ctx context.Context) error {
	err := l.bid.waitOut(ctx)
	l.proof.OthersDead = true
	return err
}

// waitForOpenRuns waits until the commands of the ledger's open runs are dead: for as
// long as their settings require, or until their ends are announced.
func (l *ledgerStart) waitForOpenRuns(ctx context.Context, open []ledger.OpenRun) error {
	b := l.bid
	if err := b.confirmGrants(ctx); err != nil {
		return err
	}
	l.open = open
	rest, host := l.closeDead()
	if rest == 0 {
		l.proof.Waited = b.heldFor()
		return nil
	}
	return l.holdForOpenRun(ctx, rest, host, func() (bool, error) {
		open, err := b.askNumber(ctx, ledger.OpenRunsQuery(b.cfg.ledgerLocks(b.Locks()), b.cfg.Claim.Shared))
		if b.lostLedger(ctx, err) {
			return true, nil // the next question finds that out, too
		}
		if session.AnsweredError(err) != nil && !b.cfg.Session.Transaction { // in a transaction the error has freed the locks
			open, err = len(l.open), nil // the run waits for all of the rest
		}
		return open == 0, err
	})
}

// holdForOpenRun holds the locks without a command for as long as an open run on host may be alive.
func (l *ledgerStart) holdForOpenRun(ctx context.Context, rest time.Duration, host string, ask func() (done bool, err error)) error {
	if err := l.bid.putOffStart(ctx, rest); err != nil {
		return err
	}
	why := "lock granted, and the ledger knows of no end of its last run on " + visible.Text(host)
	heardDead := func() bool {
		rest, _ := l.closeDead()
		return rest == 0
	}
	return l.bid.hold(ctx, delay{rest: rest, why: why, heardOver: heardDead, askOver: ask})
}

// closeDead puts into the proof which of the open runs are dead. It returns for how long another
// may still be alive, and on which host, or 0. A token in the proof closes all earlier ones of its
// lock, of which readers may have left several, so it must not be later than one that may be alive.
func (l *ledgerStart) closeDead() (rest time.Duration, host string) {
	b := l.bid
	alive := map[int]int64{} // the earliest token of each lock
	left := func(run ledger.OpenRun) time.Duration {
		e := b.listener.evidence[b.grants[run.Lock].ID]
		if b.cfg.LockDelay == 0 || e.KnowsDead(run.Token) {
			return 0
		}
		return max(0, max(b.cfg.LockDelay, run.Outlives())-b.heldFor())
	}
	for _, run := range l.open {
		if still := left(run); still > 0 {
			if earliest, known := alive[run.Lock]; !known || run.Token < earliest {
				alive[run.Lock] = run.Token
			}
			if still > rest {
				rest, host = still, run.Host
			}
		}
	}
	for _, run := range l.open {
		if earliest, known := alive[run.Lock]; !known || run.Token < earliest {
			l.proof.Closes[run.Lock] = max(l.proof.Closes[run.Lock], run.Token)
		}
	}
	return rest, host
}

// askLedgerEvery is how often the ledger is asked whether it has the end of the last
// run. After a loss that run's process needs a new session to note its end.
const askLedgerEvery = 250 * time.Millisecond

// askLedger sends the question, and returns the text of the answer.
func (l *ledgerStart) askLedger(ctx context.Context) (answer string, err error) {
	b, proof := l.bid, l.proof
	if b.cfg.Session.UsesSecondSession() {
		proof.Backend = b.Session.BackendPID()
	}
	start := b.cfg.ledgerRun().StartWithProofSQL(b.cfg.ledgerLocks(b.Locks()), b.cfg.Claim.Shared, b.Token, b.SystemID, proof) +
		", " + b.Session.AsIsSQL()
	query := "SELECT " + start + ", pg_catalog.set_config('synchronous_commit', 'local', true)"
	ctx, cancel := untilAnswered(ctx)
	defer cancel()
	var row []string
	switch {
	case b.cfg.Session.Quorum:
		row, err = b.Session.AskSecond(ctx, start)
	case b.cfg.Session.Transaction:
		row, err = b.askBeside(ctx, query)
	default:
		row, err = b.Session.Row(ctx, 3, query)
	}
	if err != nil || len(row) == 0 {
		return "", err
	}
	return row[0], nil
}

// lostLedger says whether an error means that the ledger is gone, or that access was revoked,
// so that the run may go on without it.
func (b *bid) lostLedger(ctx context.Context, err error) bool {
	if !session.Undefined(err) && !session.HasCode(err, session.InsufficientPrivilege) {
		return false
	}
	return b.Session.AskLoginQuestion(ctx) == nil && !b.usesLedger()
}

// giveUpLedger notes that the run goes on without a ledger that was there, unless it requires one.
func (b *bid) giveUpLedger() error {
	if _, err := b.ledgerApplies(); err != nil {
		return err
	}
	b.cfg.Log.Warn("the ledger is gone, or not granted any more; going on without", "event", "ledger")
	return nil
}

// withoutLedger draws the token without the ledger, once the open runs that it has named are dead,
// and those that were announced.
func (l *ledgerStart) withoutLedger(ctx context.Context) error {
	if err := l.bid.giveUpLedger(); err != nil {
		return err
	}
	for rest, host := l.closeDead(); rest > 0; rest, host = l.closeDead() {
		if err := l.holdForOpenRun(ctx, rest, host, nil); err != nil {
			return err
		}
	}
	if err := l.waitWithoutLedger(ctx); err != nil {
		return err
	}
	return l.bid.drawAndAnnounce(ctx)
}
