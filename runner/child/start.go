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

// Guard is a guard process that has no command yet. To start one ahead of time
// saves a program's start between the grant of the lock and the command.
type Guard struct{ child *Child }

// ErrTooLate says that the deadline had passed before the command could start.
var ErrTooLate = errors.New("the lease ran out before the command could start")

// errGuardSilent says that the guard was stopped, or had no time to run.
var errGuardSilent = errors.New("the guard process did not start the command in time")

// startPatience is how long an interrupted Start waits for the guard's word.
const startPatience = time.Second

// Start has the guard start the command, and returns when it runs. The error
// is a *LookupError if the command itself could not be executed, and ctx's if
// that ended and the guard did not answer. In any case the guard is used up.
//
// A guard that is stopped, or hangs, keeps the lock for nobody: Start ends by the
// deadline, and soon after ctx.
func (g *Guard) Start(ctx context.Context, cfg Config) (*Child, error) {
	c := g.child
	if boottime.Now() >= cfg.Deadline {
		g.Close()
		return nil, ErrTooLate
	}
	c.cfg = cfg
	req := startRequest{
		path: cfg.Path, args: cfg.Args, env: cfg.Env,
		deadline: int64(cfg.Deadline), lostGrace: int64(cfg.LostGrace), leaseGrace: int64(cfg.LeaseGrace),
	}
	if cfg.WaitForLeftovers {
		req.waitForAll = 1
	}
	if req.lastWords = string(cfg.LastWords); cfg.Goodbye {
		req.goodbye = 1
	}
	_ = c.control.SetDeadline(time.Now().Add(cfg.Deadline - boottime.Now()))
	hurried := make(chan struct{})
	calm := context.AfterFunc(ctx, func() {
		defer close(hurried)
		_ = c.control.SetDeadline(time.Now().Add(min(startPatience, cfg.Deadline-boottime.Now())))
	})
	err := writeMessage(c.control, msgStart, req.encode())
	if err == nil {
		err = c.awaitStart(cfg.Args[0])
	}
	if !calm() {
		<-hurried
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// Was it this process that was stopped? Then the guard's word is there.
		_ = c.control.SetDeadline(time.Now().Add(10 * time.Millisecond))
		err = c.awaitStart(cfg.Args[0])
	}
	_ = c.control.SetDeadline(time.Time{})
	var lookup *LookupError
	switch {
	case errors.As(err, &lookup), errors.Is(err, ErrTooLate):
		g.Close()
		return nil, err
	case err != nil:
		// The guard may have died, or been stopped, with the command started.
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

func (c *Child) awaitStart(name string) error {
	k, body, err := readMessage(c.control)
	switch {
	case err != nil:
		return fmt.Errorf("the guard process ended before the command could start: %w", err)
	case k == msgFailed:
		if number(body) == tooLate {
			return ErrTooLate
		}
		errno := syscall.Errno(number(body))
		return &LookupError{Name: name, NotFound: errno == syscall.ENOENT, err: errno}
	case k != msgStarted:
		return errors.New("the guard process answers nonsense")
	}
	c.pid = int(number(body))
	return nil
}

// Close ends a guard that has no command. That it hears the end of what is said to
// it would do, if it weren't stopped.
func (g *Guard) Close() {
	c := g.child
	c.hangUp()
	c.killGuard()
	c.reapGuard()
	removeCgroup(c.cgroup)
}
