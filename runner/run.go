// Package runner is where lock and command meet: Run takes the lock, starts
// the command, and sees to it that the command is dead before the lock is
// anybody else's.
package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// Run takes the lock, runs the command, and returns when every process of it
// is dead and the lock is given back. The command is started only while the
// server grants the lock. Errors are those of lock.Acquire; *LostError, if the lock
// was lost while the command ran; *InterruptedError, if a signal came before it was
// started; child.ErrTooLate, if the lease was over by then; or those of a command that
// can't be started.
func Run(cfg Config) (Outcome, error) {
	p, err := begin(cfg)
	if err != nil {
		return Outcome{}, err
	}
	defer p.hooks.Wait()
	p.parting = true
	if err := p.rest(pace.Between(0, cfg.Splay)); err != nil {
		return Outcome{}, err
	}
	return p.once()
}

// run is one command under one lock.
type run struct {
	*process
	keys    []string // of the lock, for the command
	command []string
	env     []string
	log     *slog.Logger

	listener *listener            // has the signals until the command runs; nil: they are left to come
	signals  <-chan os.Signal     // for the command
	renewed  <-chan time.Duration // the session's latest deadline

	held  *lock.Held
	guard *child.Guard
	again bool         // the guard is to have another command after this one
	child *child.Child // from the start on
}

// once takes the lock, runs the command one time, and gives the lock back.
func (p *process) once() (Outcome, error) {
	ctx, listener := interruptible(p.caught)
	defer listener.handOver()
	r := &run{process: p, keys: p.cfg.Keys, command: p.cfg.Command, env: p.cfg.Env, log: p.cfg.Log, listener: listener, signals: p.caught}
	if err := r.acquire(ctx); err != nil {
		return Outcome{}, err
	}
	defer r.held.Close()
	outcome, err := r.underLock(ctx)
	if errors.As(err, new(*LockLostError)) {
		r.announceDeath()
	}
	return outcome, err
}

// acquire takes the lock, and has the guard start while there is something else
// to wait for.
func (r *run) acquire(ctx context.Context) error {
	locking := r.locking()
	locking.Prepare = func(s *session.Session) (abandon func(), err error) {
		if r.guard, err = r.newGuard(s); err != nil {
			return func() {}, err
		}
		return r.guard.Close, nil
	}
	held, err := lock.Acquire(ctx, locking)
	if err != nil {
		return err
	}
	r.held, r.renewed = held, held.Session.Renewed()
	return nil
}

// underLock runs the command under the lock and gives the lock back, unless ctx
// has ended before.
func (r *run) underLock(ctx context.Context) (Outcome, error) {
	outcome, holds, err := r.work(ctx)
	if holds {
		r.release(outcome)
	}
	return outcome, err
}

// work runs the command under the lock, and says whether the lock has to be
// given back.
func (r *run) work(ctx context.Context) (outcome Outcome, holds bool, err error) {
	r.log = r.log.With("token", r.held.Token)
	r.log.Log(ctx, LevelNotice, "lock acquired", append([]any{"event", "acquired", "backend_pid", r.held.Session.BackendPID()}, r.describe()...)...)
	r.hook("acquired", r.cfg.Hooks.Acquired, nil)
	r.listener.keep()
	s, err := r.start(ctx)
	if err != nil {
		return Outcome{}, false, err
	}
	introduction := time.AfterFunc(introduceAfter, func() { r.held.Introduce(context.WithoutCancel(ctx)) })
	outcome, err = s.supervise()
	introduction.Stop()
	r.held.End(endOf(outcome, err))
	if err == nil && !outcome.Asked.Has(BySignal) {
		s.linger()
	}
	return outcome, r.held.Err() == nil && !errors.As(err, new(*LockLostError)), err
}

// introduceAfter is when a command has run for long enough for somebody to look who
// has the lock.
const introduceAfter = time.Second

// start starts the command. A lock under which that can't be done is given back,
// unless it is lost.
func (r *run) start(ctx context.Context) (*supervision, error) {
	if ctx.Err() != nil {
		r.guard.Close()
		r.release(Outcome{})
		return nil, context.Cause(ctx)
	}
	<-r.ready
	if err := r.held.Err(); err != nil {
		r.guard.Close()
		return nil, err
	}
	began := time.Now()
	words, goodbye := r.held.EncodedRelease()
	c, err := r.guard.Start(ctx, child.Config{
		Path: r.cfg.Path, Args: r.command, Env: r.environment(),
		Deadline: r.held.Session.Deadline(), WaitForLeftovers: r.cfg.WaitForLeftovers,
		LostGrace: r.cfg.Session.LostGrace, LeaseGrace: leaseGrace(r.cfg.Session.Lease),
		GuardPatience: guardPatience(r.cfg.Session.Lease),
		LastWords:     words, Goodbye: goodbye, Again: r.again,
	})
	if lost := r.held.Err(); lost != nil && errors.Is(err, child.ErrTooLate) {
		return nil, lost
	}
	if err != nil {
		r.release(Outcome{})
		return nil, err
	}
	r.child = c
	s := &supervision{
		cfg: &r.cfg, log: r.log, lock: r.held, command: c, began: began, started: time.Now(),
		renewed: r.renewed, signals: r.signals, missed: r.listener.handOver(),
		requests: r.held.Requests(), asker: func() string { return r.asker(context.WithoutCancel(ctx)) },
		onLoss: func(reason error) { r.hook("lost", r.cfg.Hooks.Lost, reason) },
	}
	r.log.Info("command started", "event", "started", "pid", c.PID())
	r.cfg.Watch.leading()
	return s, nil
}

// leaseGrace is the longest grace after the holder's share of the lease: with
// a tenth of the lease left, the command is dead before the server, hearing
// nothing either, gives the lock to someone who doesn't wait.
func leaseGrace(lease time.Duration) time.Duration {
	return lease*9/10 - session.HolderShare(lease)
}

// guardPatience is how long the guard may take to kill once the lock is lost:
// half of what lies between the holder's share of the lease and the instant at
// which the command is dead for certain. The other half is for this process, which
// kills the guard and what is left then.
func guardPatience(lease time.Duration) time.Duration {
	const most = 2 * time.Second
	return min(most, (session.DeadAfter(lease, 0)-session.HolderShare(lease))/2)
}

// asker finds out who asks for the lock, and who is to have it next.
func (r *run) asker(ctx context.Context) string {
	who, to := r.held.Asker(ctx)
	r.held.Prefer(to)
	return cmp.Or(who, "somebody")
}

// release gives the lock back before the process ends: the end of a session
// frees it too, but a moment later, and then the next run in the same script
// would meet a held lock. The command is dead, or was never started.
func (r *run) release(outcome Outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), session.HolderShare(r.cfg.Session.Lease))
	defer cancel()
	r.released(outcome, r.held.Release(ctx, r.parting))
}

// released says what has come of giving the lock back.
func (r *run) released(outcome Outcome, err error) {
	if err != nil {
		r.log.Warn("the session was lost after the command had ended", "event", "lost", "reason", err.Error())
		r.held.EndLate(context.Background())
		return
	}
	event, message := "released", "lock released"
	if outcome.Asked.Has(ByStepDown) {
		event, message = "handed_over", "lock released, as was asked"
	}
	r.log.Log(context.Background(), LevelNotice, message, "event", event)
	r.hook("released", r.cfg.Hooks.Released, nil)
}

// announceDeath tells those who wait for the lost lock that the command is dead, unless
// a signal asks this process to end.
func (r *run) announceDeath() {
	ctx, listener := interruptible(r.signals)
	defer listener.handOver()
	r.held.Close() // or it would keep the lock for as long as that takes
	lock.AnnounceDeaths(ctx, r.held)
}

// describe is what the log says of a lock beside its keys and its token.
func (r *run) describe() []any {
	var numbers []int64
	for _, l := range r.held.Locks {
		numbers = append(numbers, l.Number)
	}
	attrs := []any{"id", numbers}
	if r.held.Slot > 0 {
		attrs = append(attrs, "slot", r.held.Slot)
	}
	if r.held.Waited > 0 {
		attrs = append(attrs, "waited", r.held.Waited)
	}
	return attrs
}

// environment is what the command gets to know about its lock. Of several keys
// each has a line.
func (r *run) environment() []string {
	var ids []string
	for _, l := range r.held.Locks {
		ids = append(ids, l.String())
	}
	env := append(slices.Clone(r.env),
		"PGLEAD_LOCK_KEY="+strings.Join(r.keys, "\n"),
		"PGLEAD_LOCK_ID="+strings.Join(ids, "\n"),
		fmt.Sprintf("PGLEAD_TOKEN=%d", r.held.Token),
		"PGLEAD_SYSTEM_ID="+r.held.SystemID,
		fmt.Sprintf("PGLEAD_BACKEND_PID=%d", r.held.Session.BackendPID()),
	)
	if r.held.Slot > 0 {
		env = append(env, fmt.Sprintf("PGLEAD_SLOT=%d", r.held.Slot))
	}
	return env
}
