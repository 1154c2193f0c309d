package lock

import (
	"context"
	"time"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/session"
)

// Observer is told of the wait for the locks, for people and for a supervisor of this process. Each
// of its functions may be nil, and none but Beside may block for more than a second, as when
// systemd does not read.
type Observer struct {
	// Waiting is called when a wait begins, and about once a minute from then on, with the holders
	// of the locks and their waiters; in a waiter that doesn't listen, after its looks. Each call
	// costs one more question to the server.
	Waiting func(backend uint32, views []inspect.View)
	// Away is called after each failed attempt, with the reason why the database can't be reached or
	// used, every few seconds during a pause in the ledger, with that, and with nil when the wait for
	// the locks goes on. The workers of a list call it at the same time.
	Away func(obstacle error)
	// Delayed is called when a lock-delay begins, with the time when it will end, and with
	// the zero time when it is over.
	Delayed func(until time.Time)
	// Beside runs in a goroutine of its own while a session waits for the locks. backend is the
	// session's process number at the server.
	Beside func(ctx context.Context, backend uint32)
	// Alive is called with the time within which it will be called again, unless the work is stuck.
	// While the locks are held, the caller of Acquire calls it.
	Alive func(within time.Duration)
}

// SayAlive calls Alive, if there is one.
func (o Observer) SayAlive(within time.Duration) {
	if o.Alive != nil {
		o.Alive(within)
	}
}

// SayTrying calls Alive for a rest, and the attempt after it.
func (cfg *Config) SayTrying(rest time.Duration) {
	cfg.Observer.SayAlive(rest + cfg.AttemptMost())
}

func (o Observer) away(obstacle error) {
	if o.Away != nil {
		o.Away(obstacle)
	}
}

// delayed returns a function for the caller to call when the delay is over.
func (o Observer) delayed(d time.Duration) (over func()) {
	if o.Delayed == nil {
		return func() {}
	}
	o.Delayed(time.Now().Add(d))
	return func() { o.Delayed(time.Time{}) }
}

// tellEvery is how often Waiting is called.
const tellEvery = time.Minute

// untilTold is the time until Waiting is due. A waiter that doesn't listen, far back in a long line,
// is content with its looks.
func (w *waiter) untilTold() time.Duration {
	if w.cfg.Observer.Waiting == nil || !w.listener.on {
		return Forever
	}
	return time.Until(w.told.Add(tellEvery))
}

// tellObserver calls Alive, and Waiting when it is due.
func (w *waiter) tellObserver(ctx context.Context) error {
	w.cfg.SayTrying(0)
	o := w.cfg.Observer
	if o.Waiting == nil || !w.told.IsZero() && time.Since(w.told) < tellEvery {
		return nil
	}
	w.told = time.Now()
	views, err := inspect.Views(ctx, w.Session, w.cfg.Claim.Sought())
	if err == nil {
		o.Waiting(w.Session.BackendPID(), views)
	} else if session.AnsweredError(err) == nil { // no wait ends because others can't be described
		return err
	}
	return nil
}

// beside calls Beside, if there is one, until the returned function is called.
func (o Observer) beside(ctx context.Context, s *session.Session) (stop func()) {
	if o.Beside == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		o.Beside(ctx, s.BackendPID())
	}()
	return func() {
		cancel()
		<-done // Beside writes to the terminal, and the command may do so soon
	}
}
