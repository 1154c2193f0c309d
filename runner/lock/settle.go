package lock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/session"
)

// settle prepares a granted claim for the start of a command. It starts the heartbeat, waits until
// a former holder's command is dead (that holder may not know of its loss), and draws the token.
//
// A command starts only if all of this holds:
//
//	                                  who finds out, in this order (a ledger changes it: see below)
//	the server is fit for it          the login (package session, login.go)
//	the claim is complete             bid.complete
//	the delay is known                bid.verdictOn, with each lock that is granted: by what was heard
//	                                  (Evidence.Verdict) or, after a first try, by the server's
//	                                  age (youngFor). Package evidence has the states
//	                                  (evidence.go), and who may say what (closing.go)
//	no earlier command is alive       waitOut or, with a ledger, waitForOpenRuns
//	the locks are listed in pg_locks  bid.checkListed, on the rows of the statement that draws
//	                                  the token
//	the lease is not over             ExpireIfDue and EndError, below
//	no signal has come, and the       run.startSupervised (package runner), which waits
//	session is still not lost         until signals are caught
//	the lease is not over             Guard.StartCommand (package child), before it asks the guard
//	the lease is not over, and the    guardProcess.start (package child), just before it
//	socket is open                    forks
//
// With a ledger the token is drawn before it is certain that no earlier command is alive, because
// the question to the ledger contains the token. The ledger also keeps a run from starting during a
// pause, and for --once-per (startInLedger). A burst (waiter.tryInBurst), an exchange and a
// transaction (beginAndDraw) draw it with the try. If a wait follows the draw, the token is drawn
// anew (putOffStart). With a second session a separate statement lists the locks (drawOnSecond).
//
// The heartbeat does not look for requests to step down until the caller makes it do so
// (Held.checkForStepDown, List.checkForStepDowns).
//
// Only hooks (process.runHook) and the trial of doctor (tryGuard, package child) have a guard
// start something without a lock.
func (b *bid) settle(ctx context.Context) (*Held, error) {
	if !b.complete() {
		return nil, fmt.Errorf("settle lock %s: it is not held", b.cfg.Claim)
	}
	b.session.StartHeartbeat()
	usesLedger, err := b.ledgerApplies()
	if err != nil {
		return nil, err
	}
	start := b.startInLedger // which waits by itself, once it has asked the ledger
	if !usesLedger {
		if err := b.waitOut(ctx); err != nil {
			return nil, err
		}
		start = b.drawAndAnnounce
	}
	b.preparation.begin()
	err = start(ctx)
	if err == nil && !b.cfg.needsSecondLater() {
		b.session.DropSecond()
	}
	err = cmp.Or(err, b.preparation.await())   // also after an error: giveUp needs the guard's start to be over
	if err == nil && b.session.ExpireIfDue() { // the disk took longer than the rest of the lease
		err = b.session.EndError()
	}
	if err != nil {
		return nil, err
	}
	h := &Held{Session: b.session, Token: b.token, SystemID: b.systemID, bid: b}
	b.showHolding(h)
	if err := b.session.EndError(); err != nil {
		return nil, err
	}
	h.settledAt, h.stepDowns = time.Now(), make(chan StepDown, 1)
	h.coversEarlier = !slices.ContainsFunc(b.grants, func(g grant) bool { return !g.verdict.CoversEarlier })
	h.showsEnd = b.place.everJoined() && b.cfg.showsToken()
	return h, nil
}

// waitOut holds the locks without a command for the rest of the delay, in which a former holder's
// command may be alive, or until there is evidence that it is dead.
func (b *bid) waitOut(ctx context.Context) error {
	if b.reviewGrants() == 0 {
		return nil
	}
	// The grant may have come with a word of a session whose role was not looked up yet.
	if err := b.listener.askRoles(ctx); err != nil {
		return err
	}
	if b.youngFor(b.reviewGrants()) > 0 {
		if err := b.session.LearnAge(ctx); err != nil {
			return err
		}
	}
	rest := b.reviewGrants()
	if rest == 0 {
		return nil
	}
	if err := b.putOffStart(ctx, rest); err != nil {
		return err
	}
	if err := b.confirmGrants(ctx); err != nil {
		return err
	}
	d := delay{why: "lock granted without evidence that its last holder is dead", heardOver: func() bool { return b.reviewGrants() == 0 }}
	for d.rest = b.reviewGrants(); d.rest > 0; d.rest = b.reviewGrants() { // what is heard can make it longer
		if err := b.hold(ctx, d); err != nil {
			return err
		}
	}
	return nil
}

// delay is a time for which the locks are held without a command. It may be over earlier.
type delay struct {
	rest      time.Duration
	why       string
	heardOver func() bool                   // it is, by what was heard: called with each announcement
	askOver   func() (over bool, err error) // it is, by the ledger: called every askLedgerEvery; may be nil
}

// hold holds the locks without a command until the delay is over.
func (b *bid) hold(ctx context.Context, d delay) error {
	b.logDelay(ctx, d)
	b.cfg.SayTrying(d.rest)
	defer b.cfg.Observer.delayed(d.rest)()
	timer := time.NewTimer(d.rest)
	defer timer.Stop()
	var asks <-chan time.Time
	if d.askOver != nil {
		ticker := time.NewTicker(askLedgerEvery)
		defer ticker.Stop()
		asks = ticker.C
	}
	for {
		select {
		case <-timer.C:
			return nil
		case <-asks:
			if over, err := d.askOver(); err != nil || over {
				return err
			}
		case <-b.listener.news:
			if err := b.listener.askRoles(ctx); err != nil {
				return err
			}
			if d.heardOver() {
				return nil
			}
		case <-b.session.Done():
			return b.session.EndError()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (b *bid) logDelay(ctx context.Context, d delay) {
	level := LevelNotice
	if d.rest > b.cfg.LongDelay {
		level = slog.LevelWarn
	}
	most := (d.rest + time.Second - 1).Truncate(time.Second)
	b.cfg.Log.Log(ctx, level, fmt.Sprintf("%s; the command starts within %v", d.why, most), "event", "delayed", "delay", d.rest)
}

// putOffStart puts the start off: it drops the token, since a later start needs a later one, shows
// others that the command has not started, and when it will, and leaves the line. Every delay
// begins here. A bid that must not wait gets ErrDelayed instead.
func (b *bid) putOffStart(ctx context.Context, rest time.Duration) error {
	b.dropDraw(ctx)
	if b.mustNotWait {
		return cmp.Or(b.session.EndError(), ErrDelayed)
	}
	b.delayed = true
	d := b.cfg.describe()
	d.Delay, d.Since = rest, time.Now()
	b.show(d)
	return b.leaveLine(ctx, session.PlainBeatQuery)
}
