package runner

import (
	"context"
	"time"

	"github.com/pglead/pglead/runner/session"
)

// Watch is told what a run is at: for people, and for who supervises this
// process. Each of its functions may be nil, and must not block.
type Watch struct {
	// Waiting is told when a wait begins, and about once a minute from then on,
	// who has the locks and who waits for them, or what is in the way of
	// knowing. That is one more question to the server each time.
	Waiting func(backend uint32, views []session.View, obstacle error)
	// Beside is called in a goroutine of its own for as long as a backend waits.
	Beside func(ctx context.Context, backend uint32)
	// Leading is told that the command has been started.
	Leading func()
	// Ending is told that this process has been asked to end.
	Ending func()
	// Alive is told within what time it is called again, unless the work is stuck.
	Alive func(within time.Duration)
}

func (w Watch) alive(within time.Duration) {
	if w.Alive != nil {
		w.Alive(within)
	}
}

func (w Watch) leading() {
	if w.Leading != nil {
		w.Leading()
	}
}

func (w Watch) ending() {
	if w.Ending != nil {
		w.Ending()
	}
}

func (w Watch) obstacle(err error) {
	if w.Waiting != nil {
		w.Waiting(0, nil, err)
	}
}

// lookInterval is how often who waits looks who has the lock.
const lookInterval = time.Minute

// look tells cfg.Watch who has the lock, when it is time for that.
func (l *lock) look(ctx context.Context, cfg Config) error {
	if cfg.Watch.Waiting == nil || time.Since(l.looked) < lookInterval {
		return nil
	}
	l.looked = time.Now()
	views, err := l.session.Views(ctx, cfg.Claim)
	if err != nil {
		return err
	}
	cfg.Watch.Waiting(l.session.BackendPID(), views, nil)
	return nil
}

// beside calls cfg.Watch.Beside, if there is one, until the returned function
// is called.
func (l *lock) beside(ctx context.Context, cfg Config) (stop func()) {
	if cfg.Watch.Beside == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		cfg.Watch.Beside(ctx, l.session.BackendPID())
	}()
	return func() {
		cancel()
		<-done // it writes to where the command may be about to
	}
}
