// Package runner is where lock and command meet: Run takes the lock, starts the command,
// and makes sure that the command is dead before anybody else gets the lock.
//
// Read it in this order: Run, runOnce, acquire (lock.Candidate opens the session and takes the
// lock), runCommand, startSupervised (child.Guard starts the command), supervise (the one select
// that waits for lock and command alike), finish (release.go). The files each*.go are only for
// pglead each.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// Run takes the lock, runs the command, and returns when every process of the command is dead and
// the lock is released. It starts the command only while its session holds the lock. Errors are
// those of Candidate.Acquire and of starting the guard, and
//
//	*InterruptedError        a signal came before the command was started
//	child.ErrTooLate         the lease was over before the command was started
//	*child.LookupError       the command can't be executed
//	*LockLostError           the lock was lost while the command ran
//	*child.GuardError        the guard was killed, and the command with it; or it was stopped, or
//	                         killed, before it said that the command runs
func Run(cfg Config) (Outcome, error) {
	p, err := begin(cfg)
	if err != nil {
		return Outcome{}, err
	}
	defer p.awaitHooks(cfg.Lock.Observer)
	if err := p.sleep(cfg, pace.Between(0, cfg.Splay)); err != nil {
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

	held          *lock.Held
	waited        time.Duration // for the lock; 0 for an item of a list
	guard         *child.Guard
	keepsGuard    bool         // for the next command
	sharesSession bool         // other commands may run in the same session
	child         *child.Child // once it is started
	supervision   *supervision // of the command, once it has started
	asked         Asked        // what has asked for the end so far
}

// runOnce takes the lock, runs the command once, and releases the lock.
func (p *process) runOnce(cfg Config, candidate *lock.Candidate) (outcome Outcome, err error) {
	ctx, taker := interruptible(p.caught)
	r := &run{process: p, cfg: cfg, log: cfg.Lock.Log, taker: taker, signals: p.caught}
	if err = r.acquire(ctx, candidate); err == nil {
		defer r.held.Close()
		outcome, err = r.runCommand(ctx)
	}
	if r.child == nil { // else supervise got the signals, and knows whether they asked for the end
		r.stopTaking(ctx, taker)
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
	held, err := candidate.Acquire(ctx, func(s *session.Session) (abandon func(), err error) {
		if r.guard, err = r.newGuard(s); err != nil {
			return func() {}, err
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
	r.hook(hookAcquired, nil)
	r.taker.keep()
	s, err := r.startSupervised(ctx)
	r.supervision = s
	if err != nil {
		r.held.SetEnd(endUnstarted(err))
		return Outcome{}, err
	}
	outcome, err := s.supervise()
	r.held.SetEnd(endOf(outcome, err))
	r.asked = outcome.Asked
	if err == nil && !r.asked.Has(BySignal|ByStepDown) {
		r.asked |= s.linger()
	}
	return outcome, err
}

// startSupervised starts the command, and returns its supervision.
func (r *run) startSupervised(ctx context.Context) (*supervision, error) {
	if ctx.Err() != nil {
		r.guard.Close()
		return nil, context.Cause(ctx)
	}
	<-r.catching // otherwise a signal could end this process between the start and supervise
	if err := r.held.Session.EndError(); err != nil {
		r.guard.Close()
		return nil, err
	}
	began, restoreTerminal := time.Now(), child.NoteTerminal()
	c, err := r.startCommand(ctx)
	if lost := r.held.Err(); lost != nil && errors.Is(err, child.ErrTooLate) {
		return nil, lost
	}
	if err != nil {
		return nil, err
	}
	r.child = c
	s := &supervision{
		cfg: &r.cfg, log: r.log, held: r.held, command: c, restoreTerminal: restoreTerminal, began: began, started: time.Now(),
		renewed: r.held.Renewed(), signals: r.signals, kept: r.taker.handOver(),
		onLoss: func(reason error) { r.hook(hookLost, reason) }, lossLevel: r.lossLevel,
	}
	r.log.Info("command started", "event", "started", "pid", c.PID())
	if started := r.cfg.CommandObserver.Started; started != nil {
		started()
	}
	return s, nil
}

// startCommand has the guard start the command. If the guard was killed before that, perhaps
// because memory is short, a second guard starts the command.
func (r *run) startCommand(ctx context.Context) (*child.Child, error) {
	cfg := r.childConfig()
	c, err := r.guard.StartCommand(ctx, cfg)
	if !errors.Is(err, child.ErrNotStarted) {
		return c, err
	}
	r.log.Warn(err.Error()+"; starting another", "event", "guard")
	if r.guard, err = r.newGuard(r.held.Session); err != nil {
		return nil, err
	}
	return r.guard.StartCommand(ctx, cfg)
}

// childConfig says what the guard starts, and how that ends.
func (r *run) childConfig() child.Config {
	lease := r.cfg.Lock.Session.Lease
	release, endsSession := r.held.EncodedRelease()
	return child.Config{
		Path: r.cfg.Path, Args: r.cfg.Command, Env: r.environment(),
		Deadline: r.held.Session.Deadline(), WaitForLeftovers: r.cfg.WaitForLeftovers,
		LostGrace: r.cfg.Lock.LostGrace, MostGrace: leasetime.MostGrace(lease), GuardPatience: guardPatience(lease),
		Release: release, ReleaseEndsSession: endsSession,
		SocketLinger: r.socketLinger(), SharesSocket: r.sharesSession, KeepGuard: r.keepsGuard,
	}
}

// socketLinger is how long the guard of a stopped pglead keeps the connection open, and so the lock
// held, when the tree is dead. Then it closes it: a server that is blocked in a write to a stopped
// pglead's unix socket would wait for ever. Mostly the server has ended the session before.
func (r *run) socketLinger() time.Duration {
	lease := r.cfg.Lock.Session.Lease
	switch {
	case r.cfg.Lock.Session.Transaction: // behind a pooler nobody sees the silence
		return 0
	case r.sharesSession: // by then the other commands under the session are dead, too
		return lease
	}
	return leasetime.ForKill(lease) + seeSilence // the waiters in line see that the holder is silent
}

// seeSilence is how long those in line may take to see that a holder is silent: the 2 s that the
// torture allows them, and 2 s more.
const seeSilence = 4 * time.Second

// guardPatience is how long the guard may take to kill once the lock is lost: half of the
// time between the holder's share of the lease and the instant at which the command has
// to be dead. In the other half this process kills the guard and what is left.
func guardPatience(lease time.Duration) time.Duration {
	const most = 2 * time.Second
	return min(most, leasetime.ForKill(lease)/2)
}

// attributes are what the log says about the lock, besides its keys and its token.
func (r *run) attributes() []any {
	var numbers []int64
	for _, l := range r.held.Locks {
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

// environment is the command's environment, with the variables that describe its lock. Several
// keys, or numbers, are one to a line.
func (r *run) environment() []string {
	var ids []string
	for _, l := range r.held.Locks {
		ids = append(ids, l.String())
	}
	env := append(slices.Clone(r.cfg.Env),
		"PGLEAD_LOCK_KEY="+strings.Join(r.cfg.Lock.Claim.Keys, "\n"),
		"PGLEAD_LOCK_ID="+strings.Join(ids, "\n"),
		fmt.Sprintf("PGLEAD_TOKEN=%d", r.held.Token),
		"PGLEAD_SYSTEM_ID="+r.held.SystemID,
		fmt.Sprintf("PGLEAD_BACKEND_PID=%d", r.held.Session.BackendPID()),
	)
	if r.held.Slot() > 0 {
		env = append(env, fmt.Sprintf("PGLEAD_SLOT=%d", r.held.Slot()))
	}
	return env
}
