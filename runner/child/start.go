package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/pglead/pglead/runner/boottime"
)

// Guard is a guard process that has no command. Started ahead of time it saves
// a program's start between the grant of the lock and the command.
type Guard struct{ child *Child }

// ErrTooLate says that the deadline had passed, or the server had closed the connection,
// before the command could start.
var ErrTooLate = errors.New("the lease ran out before the command could start")

// errGuardSilent says that the guard was stopped, or had no time to run.
var errGuardSilent = errors.New("the guard process did not start the command in time")

// Start has the guard start the command, and returns when it runs. The error
// is a *LookupError if the command itself could not be executed, and ctx's if
// that ended and the guard did not answer. In any case the guard is used up, but for
// what Child.Guard returns.
//
// A guard that is stopped, or hangs, keeps the lock for nobody: Start ends by the
// deadline, and soon after ctx.
func (g *Guard) Start(ctx context.Context, cfg Config) (*Child, error) {
	c := g.child
	if boottime.Now() >= cfg.Deadline {
		g.Close()
		return nil, ErrTooLate
	}
	cfg.Again = cfg.Again && c.supervisor.again()
	c.cfg, c.renewed = cfg, int64(cfg.Deadline)
	if c.used {
		c.cgroup = newCgroup(c.supervisor.cgroup())
	}
	err := c.requestStart(ctx)
	var lookup *LookupError
	switch {
	case errors.As(err, &lookup), errors.Is(err, ErrTooLate):
		g.Close()
		return nil, err
	case err != nil:
		// The guard may have died, or been stopped, after it started the command.
		c.killGuard()
		c.takeOver()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errGuardSilent
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
		}
		return nil, err
	}
	go c.listen()
	return c, nil
}

// interruptedPatience is how long requestStart waits for an answer after ctx has
// ended.
const interruptedPatience = time.Second

// requestStart sends the guard its request, and returns what it answers.
func (c *Child) requestStart(ctx context.Context) error {
	timeOut := func(after time.Duration) { _ = c.control.SetDeadline(time.Now().Add(after)) }
	timeOut(c.cfg.Deadline - boottime.Now())
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		timeOut(min(interruptedPatience, c.cfg.Deadline-boottime.Now()))
	})
	err := writeMessage(c.control, msgStart, c.request())
	var answer startAnswer
	if err == nil {
		err = c.awaitStart(&answer)
	}
	if !stop() {
		<-interrupted
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// If it was this process that was stopped, the answer is there by now.
		timeOut(10 * time.Millisecond)
		err = c.awaitStart(&answer)
	}
	_ = c.control.SetDeadline(time.Time{})
	return err
}

// request is what the guard is told.
func (c *Child) request() []byte {
	cfg := c.cfg
	r := startRequest{
		path: cfg.Path, args: cfg.Args, env: cfg.Env,
		deadline: int64(cfg.Deadline), lostGrace: int64(cfg.LostGrace), leaseGrace: int64(cfg.LeaseGrace),
		lastWords: string(cfg.LastWords),
	}
	if cfg.WaitForLeftovers {
		r.waitForAll = 1
	}
	if cfg.Goodbye {
		r.goodbye = 1
	}
	if cfg.Again {
		r.again = 1
	}
	if c.used {
		r.cgroup = c.cgroup
	}
	return r.encode()
}

func (c *Child) awaitStart(answer *startAnswer) error {
	k, n, err := answer.read(c.control)
	switch {
	case err != nil:
		return fmt.Errorf("the guard process ended before the command could start: %w", err)
	case k == msgFailed:
		if n == tooLate {
			return ErrTooLate
		}
		errno := syscall.Errno(n)
		return &LookupError{Name: c.cfg.Args[0], NotFound: errno == syscall.ENOENT, err: errno}
	case k != msgStarted:
		return errors.New("the guard process answers nonsense")
	}
	c.pid = int(n)
	return nil
}

// Close ends a guard that has no command. To hang up ends any guard but one that
// is stopped.
func (g *Guard) Close() {
	c := g.child
	c.hangUp()
	c.killGuard()
	c.reapGuard()
	removeCgroup(c.cgroup)
}
