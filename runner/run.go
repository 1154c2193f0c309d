// Package runner is where lock and command meet: Run takes the lock, starts the command,
// and makes sure that the command is dead before anybody else gets the lock.
//
// Read it in this order: Run, runOnce, acquire (lock.Candidate opens the session and takes the
// lock), runCommand, startSupervised (child.Guard starts what command.go describes), supervise (the
// one select that waits for lock and command alike), finish (release.go). lead.go runs again and
// again, and linger.go is --min-hold. The files each*.go are only for pglead each. The rest is
// there to be looked up.
package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// Run takes the lock, runs the command, and returns when every process of the command is dead and
// the lock is released. It starts the command only while its session holds the lock. Errors are
// those of Candidate.Acquire and of starting the guard, and those in the table of Outcome.
func Run(cfg Config) (Outcome, error) {
	p, err := newProcess(cfg.Stdin)
	if err != nil {
		return Outcome{}, err
	}
	defer p.awaitHooks(cfg.Lock.Observer)
	if err := p.splay(cfg); err != nil {
		return Outcome{}, err
	}
	return p.runOnce(cfg, lock.NewCandidate(cfg.Lock))
}

// run is one command under one lock.
type run struct {
	*process
	cfg Config // this run's settings; in each, one item's keys, command and environment
	log *slog.Logger

	taker   *signalTaker     // takes the signals until the command runs; if nil, they stay in their channel
	signals <-chan os.Signal // for the command

	held         *lock.Held
	waited       time.Duration // for the lock; 0 for an item of a list
	guard        *child.Guard  // started by the callback of acquire
	keepGuard    bool          // for the next command
	sharesSocket bool          // other commands may run in the same session
	supervision  *supervision  // of the command; nil until it has started
	asked        Asked         // what has asked for the end so far
}

// runOnce takes the lock, runs the command once, and releases the lock.
func (p *process) runOnce(cfg Config, candidate *lock.Candidate) (outcome Outcome, err error) {
	ctx, taker := interruptible(p.caught)
	r := &run{process: p, cfg: cfg, log: cfg.Lock.Log, taker: taker, signals: p.caught}
	if err = r.acquire(ctx, candidate); err == nil {
		defer r.held.Close()
		outcome, err = r.runCommand(ctx)
	}
	taker.handOver()
	if ctx.Err() != nil && r.supervision == nil { // after a start, supervise decides what has asked for the end
		r.asked |= BySignal
	}
	if r.held != nil {
		r.finish(err)
	}
	outcome.Asked = r.asked // also before the command's start, and after its end
	return outcome, err
}

// acquire takes the lock. The guard starts meanwhile.
func (r *run) acquire(ctx context.Context, candidate *lock.Candidate) error {
	began := time.Now()
	held, err := candidate.Acquire(ctx, func(s *session.Session) (stop func(), err error) {
		if r.guard, err = r.newGuard(s); err != nil {
			return nil, err
		}
		return r.guard.Close, nil
	})
	if err != nil {
		return err
	}
	r.held, r.waited = held, time.Since(began)
	return nil
}

// runCommand runs the command under the lock, and returns when all that it started is dead. The
// caller releases the lock or, if it was lost, tells others that no command runs under it any
// more.
func (r *run) runCommand(ctx context.Context) (Outcome, error) {
	r.log = r.log.With("token", r.held.Token)
	about := append([]any{"event", "acquired", "backend_pid", r.held.Session.BackendPID()}, r.attributes()...)
	r.log.Log(ctx, lock.LevelNotice, "lock acquired", about...)
	r.hook("acquired", r.cfg.Hooks.Acquired, nil)
	r.taker.keep()
	s, err := r.startSupervised(ctx)
	r.supervision = s
	if err != nil {
		r.held.SetEnd(endUnstarted(err))
		return Outcome{}, err
	}
	outcome, err := s.supervise()
	r.held.SetEnd(endOf(outcome, err))
	if err == nil && !r.asked.Has(BySignal|ByStepDown) {
		s.linger()
	}
	return outcome, err
}

// startSupervised has the guard start the command, and returns its supervision. If the guard was
// killed before that, perhaps because memory is short, a second guard starts the command.
func (r *run) startSupervised(ctx context.Context) (*supervision, error) {
	if ctx.Err() != nil {
		r.guard.Close()
		return nil, context.Cause(ctx)
	}
	<-r.catching // otherwise a signal could end this process between the start and supervise
	if err := r.held.Err(); err != nil {
		r.guard.Close()
		return nil, err
	}
	restoreTerminal := child.SaveTerminal()
	spec := r.commandSpec()
	c, err := r.guard.StartCommand(ctx, spec)
	if errors.Is(err, child.ErrNotStarted) {
		r.log.Warn(err.Error()+"; starting another", "event", "guard")
		if r.guard, err = r.newGuard(r.held.Session); err == nil {
			c, err = r.guard.StartCommand(ctx, spec)
		}
	}
	if lost := r.held.Err(); lost != nil && errors.Is(err, child.ErrLeaseOver) {
		return nil, lost
	}
	if err != nil {
		return nil, err
	}
	s := &supervision{
		run: r, held: r.held, command: c, restoreTerminal: restoreTerminal, started: time.Now(),
		kept: r.taker.handOver(), onLoss: r.hookLost,
	}
	r.log.Info("command started", "event", "started", "pid", c.PID())
	r.cfg.CommandObserver.sayStarted()
	return s, nil
}

// attributes are what the log says about the lock, besides its keys and its token.
func (r *run) attributes() []any {
	var numbers []int64
	for _, l := range r.held.Locks() {
		numbers = append(numbers, l.Number)
	}
	attrs := []any{"id", numbers}
	if r.held.Slot() > 0 {
		attrs = append(attrs, "slot", r.held.Slot())
	}
	if r.waited > 0 {
		attrs = append(attrs, "waited", r.waited)
	}
	return attrs
}
