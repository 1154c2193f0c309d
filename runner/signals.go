package runner

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
)

// One channel has all signals (process.caught). Who takes them, and what they do, in order:
//
//	while                          taken by                      a signal that asks for the end
//	a sleep, and Acquire           listener                      ends the context, and so the run
//	the start (listener.keep on)   listener, which keeps them    the same, unless the command starts:
//	                                                             then it gets the kept ones
//	the command                    supervise, which forwards     is the command's to act on; TERM and
//	                                                             INT start --kill-after, too
//	--min-hold after it            linger                        ends the wait
//	the call of those in line      another listener              leaves it 2 s (run.call)
//	a report after a loss          another listener              ends it
//
// In pglead each one loop takes them, and passes them on to all runs (each.relay).

// listener takes the signals while no command runs.
type listener struct {
	keeping chan struct{} // unbuffered: the listener keeps the signals from the next receive on
	kept    []keptSignal
	close   func()
	closed  chan struct{}
}

// keptSignal is a signal that came before supervise could take it.
type keptSignal struct {
	unix.Signal
	at boottime.Instant // when the listener took it, a little after it came
}

// interruptible returns a context that ends when a signal asks this process to end,
// and the listener that ends it.
func interruptible(signals <-chan os.Signal) (context.Context, *listener) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := make(chan struct{})
	l := newListener(stop)
	go l.listen(signals, stop, cancel)
	return ctx, l
}

func newListener(stop chan struct{}) *listener {
	return &listener{keeping: make(chan struct{}), close: sync.OnceFunc(func() { close(stop) }), closed: make(chan struct{})}
}

func (l *listener) listen(signals <-chan os.Signal, stop <-chan struct{}, cancel context.CancelCauseFunc) {
	defer close(l.closed)
	for keeping := false; ; {
		select {
		case <-l.keeping:
			keeping = true
		case sig := <-signals:
			if keeping && len(l.kept) < cap(signals) {
				l.kept = append(l.kept, keptSignal{sig.(unix.Signal), boottime.Now()})
			}
			if child.Interrupts(sig.(unix.Signal)) {
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
func (l *listener) keep() {
	if l != nil {
		l.keeping <- struct{}{}
	}
}

// handOver ends the listener, so that others can take the signals, and returns those that
// it kept for the command.
func (l *listener) handOver() (kept []keptSignal) {
	if l == nil {
		return nil
	}
	l.close()
	<-l.closed
	return l.kept
}
