package lock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
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
	b.Session.StartHeartbeat()
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
	err = cmp.Or(err, b.preparation.await()) // also after an error: giveUp needs the guard's start to be over
	if err == nil {
		b.Session.ExpireIfDue() // the disk may have taken longer than the rest of the lease
		err = b.Session.EndError()
	}
	if err != nil {
		return nil, err
	}
	h := &Held{bid: b, renewed: b.Session.Renewed()}
	h.showHolding()
	h.settledAt, h.stepDowns = time.Now(), make(chan StepDown, 1)
	h.coversEarlier = !slices.ContainsFunc(b.grants, func(g grant) bool { return !g.verdict.CoversEarlier })
	return h, nil
}
