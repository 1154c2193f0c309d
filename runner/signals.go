package runner

import (
	"context"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
)

// early hears the signals before the command runs.
type early struct {
	starting atomic.Bool // from now on, what comes is for the command
	missed   []os.Signal
	close    func()
	closed   chan struct{}
}

// interruptible returns a context that ends when a signal asks this process
// to, and who hears the signals until then.
func interruptible(signals <-chan os.Signal) (context.Context, *early) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := make(chan struct{})
	e := &early{close: sync.OnceFunc(func() { close(stop) }), closed: make(chan struct{})}
	go func() {
		defer close(e.closed)
		for {
			select {
			case sig := <-signals:
				if e.starting.Load() && len(e.missed) < cap(signals) {
					e.missed = append(e.missed, sig)
				}
				if child.Interrupts(sig.(unix.Signal)) {
					cancel(&InterruptedError{Signal: sig.(unix.Signal)})
				}
			case <-stop:
				return
			}
		}
	}()
	return ctx, e
}

// handOver leaves the signals to someone else from now on, who gets those that
// came while the command was being started, too.
func (e *early) handOver() (missed []os.Signal) {
	e.close()
	<-e.closed
	return e.missed
}
