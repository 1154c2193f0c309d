package runner

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// One channel has all signals (process.caught). Who takes them, and what they do, in order:
//
//	while                          taken by                      a signal that asks for the end
//	a sleep, and Acquire           a signalTaker                 ends the context, and so the run
//	the start (from keep on)       the same, which keeps them    ends the run or, if the command has
//	                                                             started by then, is passed on to it
//	the command                    supervise, which forwards     is the command's to act on; TERM and
//	                                                             INT start --kill-after, too
//	--min-hold after it            linger                        ends the wait
//	the call of those in line      another signalTaker           leaves it 2 s (run.release)
//	the release                    the same                      leaves each of its requests 5 s
//	a report after a loss          another signalTaker           ends it; an earlier one leaves it 2 s
//
// In `pglead each`, one loop takes them, and passes them on to all runs (each.passOnSignals).

// signalTaker takes the signals while no command runs.
type signalTaker struct {
	keeping chan struct{} // unbuffered: a send returns once take has begun to keep the signals
	kept    []keptSignal
	close   func()
	closed  chan struct{}
}

// keptSignal is a signal that came before supervise could take it.
type keptSignal struct {
	unix.Signal
	at boottime.Instant // when it was taken, a little after it came
}

// interruptible returns a context that ends when a signal asks this process to end,
// and the signalTaker that ends it.
func interruptible(signals <-chan os.Signal) (context.Context, *signalTaker) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := make(chan struct{})
	t := newSignalTaker(stop)
	go t.take(signals, stop, cancel)
	return ctx, t
}

func newSignalTaker(stop chan struct{}) *signalTaker {
	return &signalTaker{keeping: make(chan struct{}), close: sync.OnceFunc(func() { close(stop) }), closed: make(chan struct{})}
}

func (t *signalTaker) take(signals <-chan os.Signal, stop <-chan struct{}, cancel context.CancelCauseFunc) {
	defer close(t.closed)
	for keeping := false; ; {
		select {
		case <-t.keeping:
			keeping = true
		case sig := <-signals:
			if keeping && len(t.kept) < cap(signals) {
				t.kept = append(t.kept, keptSignal{sig.(unix.Signal), boottime.Now()})
			}
			if endsPglead(sig.(unix.Signal)) {
				cancel(&InterruptedError{Signal: sig.(unix.Signal)})
			}
		case <-stop:
			return
		}
	}
}

// keep keeps the signals from now on: they are also for the command, which is about to
// start. When keep returns, each signal that asks this process to end either is kept or has
// ended the context. The caller must not have called handOver.
func (t *signalTaker) keep() {
	if t != nil {
		t.keeping <- struct{}{}
	}
}

// handOver ends the signalTaker, so that others can take the signals, and returns those that
// it kept for the command.
func (t *signalTaker) handOver() (kept []keptSignal) {
	if t == nil {
		return nil
	}
	t.close()
	<-t.closed
	return t.kept
}

// endsCommand says whether a signal asks a command to end, and this process with it. HUP and QUIT
// may not: a daemon reloads its configuration on HUP, and a virtual machine lists its threads on
// QUIT. If the command dies of one of them, that signal counts as having asked for the end. The
// meaning of other signals is up to the command.
func endsCommand(sig unix.Signal) bool { return sig == unix.SIGTERM || sig == unix.SIGINT }

// endsPglead says whether a signal ends this process while no command runs. (Only a command could
// give the signal another meaning.)
func endsPglead(sig unix.Signal) bool {
	switch sig {
	case unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT:
		return false
	}
	return true
}
