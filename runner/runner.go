// Package runner is where lock and command meet: Run takes the lock, starts
// the command, and sees to it that the command is dead before the lock is
// anybody else's.
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/session"
)

// Config is one run.
type Config struct {
	Keys  []string // what the command gets to know about Claim
	Claim session.Claim

	Session session.Config // LostGrace included
	Wait    time.Duration  // for the lock: 0 tries once, Forever has no end

	// LockDelay is how long a former holder may live on without knowing that
	// it has lost: so long is waited, with the lock held, where its end is not
	// known to be clean. See session.Evidence.
	LockDelay time.Duration

	Path    string // of the command, from child.Lookup
	Command []string
	Env     []string // the command's, to which the PGLEAD_LOCK_… are added
	Stdin   *os.File // the command's; nil is this process's own

	Timeout          time.Duration // 0: none
	KillAfterTimeout time.Duration // from the SIGTERM of Timeout to SIGKILL
	KillAfterSignal  time.Duration // from a forwarded signal to SIGKILL; 0: never
	WaitForLeftovers bool

	// MinHold is how long the lock is held from the command's start on, even
	// if the command ends before.
	MinHold time.Duration

	// Explain has a refusal say who holds the lock, which is one more question
	// to the server.
	Explain bool

	Watch Watch
	Hooks Hooks
	Log   *slog.Logger

	parting bool // this process ends with the run
	// reached is set once the server has answered for the lock. Who has it
	// rides out every error from then on.
	reached  *bool
	guards   *child.Guards
	catching <-chan struct{} // is closed when signals for the command are caught
	hooks    *sync.WaitGroup // those that run
	ending   func(Outcome)   // is called before the lock of a command that ended is given back
}

// Outcome is the end of a command that ran.
type Outcome struct {
	Status      unix.WaitStatus
	Ran         time.Duration
	TimedOut    bool
	Interrupted bool // this process was asked to end while the command ran
	SteppedDown bool // it was asked to give the lock back
}

// HeldError says that someone else has the lock.
type HeldError struct {
	Database string
	Waited   time.Duration
	Holders  []session.View // as far as they are known
}

func (e *HeldError) Error() string {
	text := fmt.Sprintf("the lock in %s is held elsewhere", e.Database)
	if e.Waited > 0 {
		text = fmt.Sprintf("the lock in %s was held elsewhere for all of the %v that --wait allows", e.Database, e.Waited)
	}
	const most = 3
	for i, holder := range e.Holders {
		if i == most {
			return fmt.Sprintf("%s, and %d more", text, len(e.Holders)-most)
		}
		text += map[bool]string{true: ": by ", false: "; by "}[i == 0] + holder.String()
	}
	return text
}

// InterruptedError says that a signal came before the command started.
type InterruptedError struct{ Signal unix.Signal }

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("interrupted by %s before the command started", unix.SignalName(e.Signal))
}

// LostError says that the lock was lost while the command ran, and that the
// command is dead.
type LostError struct {
	Database string
	Cause    error
	Heard    time.Duration // how long before the loss the lock was last known held
	What     string        // what was done about it
}

func (e *LostError) Error() string {
	heard := ""
	if e.Heard > 0 {
		heard = fmt.Sprintf(" (last known held %v before)", e.Heard.Round(time.Millisecond))
	}
	return fmt.Sprintf("the lock in %s was lost%s: %v; %s", e.Database, heard, e.Cause, e.What)
}

func (e *LostError) Unwrap() error { return e.Cause }

// GuardDiedError says that the guard process was killed, and that the command
// was killed for that.
type GuardDiedError struct{ Killed int }

func (e *GuardDiedError) Error() string {
	return "the guard process died; the command and what it had started were killed"
}

// Run takes the lock, runs the command, and returns when every process of it
// is dead and the lock is given back. The command is started only while the
// server grants the lock. Errors are of the types above, *child.LookupError,
// or *session.Error.
func Run(cfg Config) (Outcome, error) {
	signals, err := cfg.begin()
	if err != nil {
		return Outcome{}, err
	}
	defer cfg.hooks.Wait()
	cfg.parting = true
	return once(cfg, signals)
}

// begin is what this process does before it supervises anything.
func (cfg *Config) begin() (signals <-chan os.Signal, err error) {
	if cfg.guards, err = child.NewGuards(); err != nil {
		return nil, err
	}
	cfg.guards.Stdin = cfg.Stdin
	child.ReapOrphans()
	signals, cfg.catching = child.Signals()
	cfg.hooks = &sync.WaitGroup{}
	return signals, nil
}

// once takes the lock, runs the command one time, and gives the lock back.
func once(cfg Config, signals <-chan os.Signal) (Outcome, error) {
	ctx, handOver := interruptible(signals)
	defer handOver()
	l, err := acquire(ctx, cfg)
	if err != nil {
		return Outcome{}, err
	}
	handOver()
	outcome, err := l.run(ctx, cfg, events{signals: signals, renewed: l.session.Renewed()})
	if !l.parted {
		l.session.Close()
	}
	return outcome, err
}

// run runs the command under the lock and gives the lock back, unless ctx has
// ended before.
func (l *lock) run(ctx context.Context, cfg Config, ev events) (Outcome, error) {
	s := l.session
	log := cfg.Log.With("token", l.grant.Token)
	log.Info("lock acquired", append([]any{"event", "acquired", "backend_pid", s.BackendPID()}, l.describe()...)...)
	l.hook(log, cfg, "acquired", cfg.Hooks.Acquired, nil)
	if ctx.Err() != nil {
		l.guard.Close()
		l.release(log, cfg, Outcome{})
		return Outcome{}, context.Cause(ctx)
	}
	<-cfg.catching
	asked := time.Now()
	c, err := l.guard.Start(child.Config{
		Path: cfg.Path, Args: cfg.Command, Env: environment(cfg, l),
		Deadline: s.Deadline(), WaitForLeftovers: cfg.WaitForLeftovers,
		LostGrace: cfg.Session.LostGrace, LeaseGrace: leaseGrace(cfg.Session.Lease),
	})
	if err != nil {
		l.release(log, cfg, Outcome{})
		return Outcome{}, err
	}
	began := time.Now()
	log.Info("command started", "event", "started", "pid", c.PID())
	cfg.Watch.leading()

	requests := make(chan string, 1)
	ev.stepDown = requests
	heeded := make(chan struct{})
	heed := time.AfterFunc(heedAfter, func() {
		defer close(heeded)
		l.hold.HeedStepDown(context.WithoutCancel(ctx), requests)
	})
	ev.lost = func(err error) { l.hook(log, cfg, "lost", cfg.Hooks.Lost, err) }
	outcome, err := supervise(cfg, log, asked, s, c, ev)
	if !heed.Stop() {
		<-heeded
	}
	if err == nil && !outcome.Interrupted {
		linger(cfg, log, s, ev.signals, cfg.MinHold-time.Since(began))
	}
	if s.Err() == nil && !errors.As(err, new(*LostError)) {
		if cfg.ending != nil {
			cfg.ending(outcome)
		}
		l.release(log, cfg, outcome)
	}
	return outcome, err
}

// describe is what the log says of a lock beside its keys and its token.
func (l *lock) describe() []any {
	var numbers []int64
	for _, held := range l.hold.Held() {
		numbers = append(numbers, held.Number)
	}
	attrs := []any{"id", numbers}
	if slot := l.hold.Slot(); l.hold.Gated() {
		attrs = append(attrs, "slot", slot)
	}
	if !l.began.IsZero() {
		attrs = append(attrs, "waited", time.Since(l.began))
	}
	return attrs
}

// events are what a command's supervision hears of beside the command itself
// and the end of the session.
type events struct {
	signals <-chan os.Signal
	renewed <-chan time.Duration // the session's latest deadline

	stepDown <-chan string // who asks for it

	lost func(reason error) // is called after the order to kill the command
}

// heedAfter saves short commands, which nobody asks to step down, the question.
const heedAfter = time.Second

// linger keeps the lock of a command that has ended for as long as it says, or
// until a signal asks this process to end.
func linger(cfg Config, log *slog.Logger, s *session.Session, signals <-chan os.Signal, d time.Duration) {
	if d <= 0 {
		return
	}
	log.Info("holding the lock for the rest of --min-hold", "event", "lingering", "rest", d)
	cfg.Watch.alive(d + cfg.Session.Lease)
	over := time.After(d)
	for {
		select {
		case <-over:
			return
		case <-s.Lost():
			log.Warn("the lock was lost before --min-hold was over; another node may run the command again: "+s.Err().Error(), "event", "lost")
			return
		case sig := <-signals:
			if child.Interrupts(sig.(unix.Signal)) {
				return
			}
		}
	}
}

// leaseGrace is the longest grace after the holder's share of the lease: with
// a tenth of the lease left, the command is dead before the server, hearing
// nothing either, gives the lock to someone who doesn't wait.
func leaseGrace(lease time.Duration) time.Duration {
	return lease*9/10 - session.HolderShare(lease)
}

// supervise is where the lock's fate and the command's meet. It returns when
// the whole tree is dead.
func supervise(cfg Config, log *slog.Logger, began time.Time, s *session.Session, c *child.Child, ev events) (Outcome, error) {
	timeout := after(cfg.Timeout)
	lost := s.Lost()
	var killAfter <-chan time.Time
	var timedOut, interrupted, asked bool
	var tick <-chan time.Time
	if cfg.Watch.Alive != nil {
		ticker := time.NewTicker(cfg.Session.Lease / 5)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		cfg.Watch.alive(cfg.Session.Lease)
		select {
		case <-tick: // to say that
		case <-c.Done():
			outcome, err := conclude(cfg, log, began, s, c)
			if lost != nil && errors.As(err, new(*LostError)) { // the guard was faster
				log.Info("lock lost", "event", "lost", "reason", err.Error())
				ev.lost(err)
			}
			outcome.TimedOut, outcome.Interrupted, outcome.SteppedDown = timedOut, interrupted, asked
			return outcome, err

		case <-lost:
			lost = nil
			c.Lose()
			log.Info("lock lost, killing the command", "event", "lost", "reason", s.Err().Error())
			ev.lost(s.Err())

		case deadline := <-ev.renewed:
			c.Renew(deadline)

		case sig := <-ev.signals:
			c.Forward(sig.(unix.Signal))
			if child.Interrupts(sig.(unix.Signal)) {
				interrupted = true
				cfg.Watch.ending()
				if killAfter == nil {
					killAfter = after(cfg.KillAfterSignal)
				}
			}

		case by := <-ev.stepDown:
			log.Warn("asked to step down by "+by+"; sending SIGTERM", "event", "stepping_down", "by", by)
			asked = true
			c.Signal(unix.SIGTERM)
			c.Signal(unix.SIGCONT)
			if killAfter == nil {
				killAfter = after(cfg.KillAfterSignal)
			}

		case <-timeout:
			timedOut, timeout = true, nil
			log.Warn(fmt.Sprintf("the command ran for all of the %v that --timeout allows; sending SIGTERM", cfg.Timeout), "event", "timeout")
			c.Signal(unix.SIGTERM)
			c.Signal(unix.SIGCONT)
			killAfter = after(cfg.KillAfterTimeout)

		case <-killAfter:
			killAfter = nil
			log.Warn("the command did not end after SIGTERM; killing it and all that it started", "event", "killed")
			c.Kill()

		case event := <-c.Events():
			report(log, cfg, c, event)
		}
	}
}

// after is a timer's channel; none at all for 0.
func after(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}

func report(log *slog.Logger, cfg Config, c *child.Child, event child.Event) {
	switch {
	case event.Stopped != 0:
		c.StopWith()
	case event.Unkillable != "":
		log.Error("these processes can't be killed, and the lock stays held while they live: "+event.Unkillable, "event", "unkillable")
	case event.Leftovers != "" && cfg.WaitForLeftovers:
		log.Info("the command has ended; waiting for what it left running: "+event.Leftovers, "event", "leftovers")
	case event.Leftovers != "":
		log.Warn("the command has ended; ending what it left running: "+event.Leftovers, "event", "leftovers")
	}
}

// conclude turns the end of the tree into an outcome.
func conclude(cfg Config, log *slog.Logger, began time.Time, s *session.Session, c *child.Child) (Outcome, error) {
	result := c.Result()
	ran := time.Since(began)
	if result.Ending == child.SocketClosed {
		// The guard was faster than the session's reader, which has the
		// server's reason.
		select {
		case <-s.Lost():
		case <-time.After(time.Second):
		}
	}
	if result.GuardDied {
		log.Info("command killed", "event", "killed", "ran", ran)
		return Outcome{}, &GuardDiedError{Killed: result.Killed}
	}
	if err := lossOf(cfg, s, c); err != nil {
		log.Info("command killed", "event", "killed", "ran", ran, "processes", result.Killed)
		return Outcome{}, err
	}
	log.Info("command ended", "event", "exited", "ran", ran, "status", describeStatus(result.Status))
	return Outcome{Status: result.Status, Ran: ran}, nil
}

// lossOf says how the lock was lost while the command ran, or nil.
func lossOf(cfg Config, s *session.Session, c *child.Child) error {
	result := c.Result()
	lost := &LostError{Database: session.Target(cfg.Session.Database), What: fmt.Sprintf("the command (process %d) was killed with all that it had started, %d processes", c.PID(), result.Killed)}
	if result.Killed == 0 {
		lost.What = fmt.Sprintf("the command (process %d) had just ended: %s", c.PID(), describeStatus(result.Status))
	}
	var cause *session.LostError
	switch {
	case result.Ending == child.LeaseOver:
		lost.Cause = errors.New("the lease ran out, since this process was stopped or had no time to run")
	case errors.As(s.Err(), &cause):
		lost.Cause, lost.Heard = cause.Cause, cause.Heard
	case result.Ending == child.SocketClosed:
		lost.Cause = errors.New("the server closed the connection")
	default:
		return nil
	}
	return lost
}

func describeStatus(status unix.WaitStatus) string {
	if status.Signaled() {
		return unix.SignalName(status.Signal())
	}
	return "exit status " + strconv.Itoa(status.ExitStatus())
}

// environment is what the command gets to know about its lock. Of several keys
// each has a line.
func environment(cfg Config, l *lock) []string {
	var ids []string
	for _, held := range l.hold.Held() {
		ids = append(ids, held.String())
	}
	env := append(slices.Clone(cfg.Env),
		"PGLEAD_LOCK_KEY="+strings.Join(cfg.Keys, "\n"),
		"PGLEAD_LOCK_ID="+strings.Join(ids, "\n"),
		fmt.Sprintf("PGLEAD_TOKEN=%d", l.grant.Token),
		"PGLEAD_SYSTEM_ID="+l.grant.SystemID,
		fmt.Sprintf("PGLEAD_BACKEND_PID=%d", l.session.BackendPID()),
	)
	if l.hold.Gated() {
		env = append(env, fmt.Sprintf("PGLEAD_SLOT=%d", l.hold.Slot()))
	}
	return env
}

// interruptible returns a context that ends when a signal asks this process
// to, and the function that leaves the signals to someone else from then on.
func interruptible(signals <-chan os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case sig := <-signals:
				if child.Interrupts(sig.(unix.Signal)) {
					cancel(&InterruptedError{Signal: sig.(unix.Signal)})
				}
			case <-stop:
				return
			}
		}
	}()
	return ctx, sync.OnceFunc(func() {
		close(stop)
		<-stopped
	})
}
