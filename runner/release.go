package runner

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/lock"
)

// finish is called when the command is dead, or was never started. What it does depends on whether
// the lock was lost, and when:
//
//	never                    release frees it: the next in line starts at once
//	while the command ran    ReportLost tells those who wait that the command is dead
//	after the command's end  ReportEnded tells them, and gives the ledger the run's own end
//	or before its start
//	by the release itself    ReportEnded, too, from afterRelease
func (r *run) finish(err error) {
	switch {
	case errors.As(err, new(*LockLostError)): // while the command ran
		r.held.Close() // otherwise the session would keep the lock meanwhile
		r.untilSignal(func(ctx context.Context) { lock.ReportLost(ctx, r.held) })
	case r.held.Err() != nil:
		if r.supervision != nil { // otherwise the error is that the command was not started
			r.supervision.logLateLoss()
		}
		r.hookLost(r.held.Err())
		r.reportEnded()
	default:
		r.release()
	}
}

// release frees the lock. The command is dead, or was never started. The end of the session
// would free the lock, too, but only a moment after this process has ended. Until then the next run
// in the same script would find the lock held.
//
// To call those in line who don't listen may take seconds, and a server that is silent lets the
// release wait for 3/5 of the lease. A signal that asks this process to end, before or meanwhile,
// leaves the call 2 s, and each request of the release 5 s. In a list such a signal shortens
// nothing, since the session goes on.
func (r *run) release() {
	hurried, hurry := context.WithCancelCause(context.Background())
	defer hurry(nil)
	if r.asked.Has(BySignal) {
		hurry(lock.ErrNoAnswer)
	}
	var err error
	r.takeSignals(func(ctx context.Context) {
		context.AfterFunc(ctx, func() { hurry(lock.ErrNoAnswer) })
		r.held.Call(hurried)
		err = r.held.Release(hurried)
	})
	r.afterRelease(err)
}

// afterRelease logs whether the lock was released, and calls the hook for that.
func (r *run) afterRelease(err error) {
	if err != nil {
		r.log.Warn("the lock could not be released, and is free when its session ends: "+err.Error(), "event", "lost", "reason", err.Error())
		r.hookLost(err)
		r.reportEnded()
		return
	}
	event, message := "released", "lock released"
	if r.asked.Has(ByStepDown) {
		event, message = "handed_over", "lock released, as was asked"
	}
	r.log.Log(context.Background(), lock.LevelNotice, message, "event", event)
	r.hook("released", r.cfg.Hooks.Released, nil)
}

// reportEnded tells the ledger, and those who wait for the lost lock, that the command had ended.
func (r *run) reportEnded() {
	r.untilSignal(func(ctx context.Context) { lock.ReportEnded(ctx, r.held) })
}

// untilSignal calls f with a context that ends when a signal asks this process to end or, if one
// already has, after PatienceAtEnd. f itself may take as long as the lock-delay.
func (r *run) untilSignal(f func(context.Context)) {
	for len(r.signals) > 0 {
		if endsPglead((<-r.signals).(unix.Signal)) {
			r.asked |= BySignal
		}
	}
	hurried := r.asked.Has(BySignal)
	r.takeSignals(func(ctx context.Context) {
		if hurried {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, lock.PatienceAtEnd, lock.ErrNoAnswer)
			defer cancel()
		}
		f(ctx)
	})
}

// takeSignals calls f with a context that ends when a signal asks this process to end, and notes
// whether one did: it was taken from the channel, so nobody else will see it.
func (r *run) takeSignals(f func(context.Context)) {
	ctx, taker := interruptible(r.signals)
	f(ctx)
	taker.handOver()
	if ctx.Err() != nil {
		r.asked |= BySignal
	}
}
