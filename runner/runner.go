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
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/session"
)

// Config is one run.
type Config struct {
	Key string
	ID  lockkey.ID

	Session session.Config
	Wait    time.Duration // for the lock: 0 tries once, Forever has no end

	// LockDelay is how long a former holder may live on without knowing that
	// it has lost: so long is waited, with the lock held, where its end is not
	// known to be clean. See session.Evidence.
	LockDelay time.Duration
	LostGrace time.Duration // after a loss: from SIGTERM to SIGKILL

	Command []string
	Env     []string // the command's, to which the PGLEAD_LOCK_… are added

	Timeout          time.Duration // 0: none
	KillAfterTimeout time.Duration // from the SIGTERM of Timeout to SIGKILL
	KillAfterSignal  time.Duration // from a forwarded signal to SIGKILL; 0: never
	WaitForLeftovers bool

	Log *slog.Logger
}

// Outcome is the end of a command that ran.
type Outcome struct {
	Status   unix.WaitStatus
	TimedOut bool
}

// HeldError says that someone else has the lock.
type HeldError struct {
	Database string
	Waited   time.Duration
}

func (e *HeldError) Error() string {
	if e.Waited > 0 {
		return fmt.Sprintf("the lock in %s was held elsewhere for all of the %v that --wait allows", e.Database, e.Waited)
	}
	return fmt.Sprintf("the lock in %s is held elsewhere", e.Database)
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
	path, err := child.Lookup(cfg.Command[0])
	if err != nil {
		return Outcome{}, err
	}
	child.ReapOrphans()
	signals, stopSignals := child.Signals()
	defer stopSignals()

	ctx, handOver := interruptible(signals)
	defer handOver()
	l, err := acquire(ctx, cfg)
	if err != nil {
		return Outcome{}, err
	}
	s, grant := l.session, l.grant
	defer s.Close()
	log := cfg.Log.With("token", grant.Token)
	log.Info("lock acquired", "event", "acquired", "backend_pid", s.BackendPID())

	// The token's transaction has announced a start, so an end is due.
	clean := &session.Clean{Token: grant.Token, LostGrace: cfg.LostGrace}
	handOver()
	if ctx.Err() != nil {
		l.guard.Close()
		release(log, cfg, s, clean)
		return Outcome{}, context.Cause(ctx)
	}
	c, err := l.guard.Start(child.Config{
		Path: path, Args: cfg.Command, Env: environment(cfg, s, grant),
		Deadline: s.Deadline(), WaitForLeftovers: cfg.WaitForLeftovers,
		LostGrace: cfg.LostGrace, LeaseGrace: leaseGrace(cfg.Session.Lease),
	})
	if err != nil {
		release(log, cfg, s, clean)
		return Outcome{}, err
	}
	log.Info("command started", "event", "started", "pid", c.PID())

	outcome, err := supervise(cfg, log, s, c, signals)
	if s.Err() == nil && !errors.As(err, new(*LostError)) {
		release(log, cfg, s, clean)
	}
	return outcome, err
}

// leaseGrace is the longest grace after the holder's share of the lease: with
// a tenth of the lease left, the command is dead before the server, hearing
// nothing either, gives the lock to someone who doesn't wait.
func leaseGrace(lease time.Duration) time.Duration {
	return lease*9/10 - session.HolderShare(lease)
}

// supervise is where the lock's fate and the command's meet. It returns when
// the whole tree is dead.
func supervise(cfg Config, log *slog.Logger, s *session.Session, c *child.Child, signals <-chan os.Signal) (Outcome, error) {
	began := time.Now()
	timeout := after(cfg.Timeout)
	lost := s.Lost()
	var killAfter <-chan time.Time
	var timedOut bool
	for {
		select {
		case <-c.Done():
			return conclude(cfg, log, began, timedOut, s, c)

		case <-lost:
			lost = nil
			c.Lose()
			log.Info("lock lost, killing the command", "event", "lost", "reason", s.Err().Error())

		case deadline := <-s.Renewed():
			c.Renew(deadline)

		case sig := <-signals:
			c.Forward(sig.(unix.Signal))
			if child.Interrupts(sig.(unix.Signal)) && killAfter == nil {
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
func conclude(cfg Config, log *slog.Logger, began time.Time, timedOut bool, s *session.Session, c *child.Child) (Outcome, error) {
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
	return Outcome{Status: result.Status, TimedOut: timedOut}, nil
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

// environment is what the command gets to know about its lock.
func environment(cfg Config, s *session.Session, grant session.Grant) []string {
	return append(cfg.Env[:len(cfg.Env):len(cfg.Env)],
		"PGLEAD_LOCK_KEY="+cfg.Key,
		fmt.Sprintf("PGLEAD_LOCK_ID=%d", cfg.ID),
		fmt.Sprintf("PGLEAD_TOKEN=%d", grant.Token),
		"PGLEAD_SYSTEM_ID="+grant.SystemID,
		fmt.Sprintf("PGLEAD_BACKEND_PID=%d", s.BackendPID()),
	)
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
