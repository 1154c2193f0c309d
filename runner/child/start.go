package child

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// ErrLeaseOver says that the deadline had passed, or the server had closed the connection,
// before the command could start.
var ErrLeaseOver = errors.New("the lease ran out, or the server closed the connection, before the command could start")

// GuardError says that the guard was killed, or stopped. All that it had started is dead by now.
type GuardError struct {
	MayHaveRun bool // the command ran, or may have run
	text       string
	Hint       string // what the user can do about it, or empty
}

func (e *GuardError) Error() string { return e.text }

const killedHint = "was it killed by hand, by the kernel for want of memory (dmesg), or by a limit on processes (ulimit -u, pids.max)?"

var (
	// ErrNotStarted says that the guard had died before it could read what to start. Another one
	// may be asked to start it.
	ErrNotStarted = &GuardError{false, "the guard process died before the command was started", killedHint}
	// ErrGuardDied is for a command that ran: see GuardDied.
	ErrGuardDied = &GuardError{true, "the guard process died; the command and what it had started were killed", killedHint}

	errStartUnknown = &GuardError{true, "the guard process died before it said that the command runs; if it did run, it was killed", killedHint}
	errGuardSilent  = &GuardError{true, "the guard process did not start the command in time", ""} // it was stopped, or had no time to run
)

// StartCommand makes the guard, which has to be idle, start the command, and returns when the
// command runs. After an error the guard has ended. With the command it ends, too, unless it is
// Idle then. Errors are
//
//	*LookupError    the command can't be executed, or is too long (E2BIG)
//	ErrLeaseOver    the lease was over before
//	*GuardError     the guard was killed, or stopped; with ErrNotStarted nothing has run
//
// and ctx's cause if ctx ended and the guard did not answer. A guard that answers nonsense is an error
// of no type, and is killed, too.
//
// A guard that is stopped, or hangs, can't make this process keep the lock: StartCommand
// returns by the deadline, and soon after the end of ctx, unless processes can't be killed
// (Spec.Unkillable).
func (g *Guard) StartCommand(ctx context.Context, spec Spec) (*Child, error) {
	g.idle = false
	if boottime.Now() >= spec.Deadline {
		g.Close()
		return nil, ErrLeaseOver
	}
	<-g.parent.threads()
	if g.used { // its last command may have stopped it
		g.wake()
	}
	g.used = true
	pid, born, err := g.askToStart(ctx, spec)
	var lookup *LookupError
	switch {
	case errors.As(err, &lookup), errors.Is(err, ErrLeaseOver):
		g.Close()
		return nil, err
	case err != nil:
		// The guard may have died, or been stopped, after it started the command.
		g.sigkill()
		g.parent.killInPlaceOf(g, spec.Unkillable)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errGuardSilent
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
		}
		return nil, err
	}
	c := &Child{
		guard: g, spec: spec, pid: pid, born: born, renewed: spec.Deadline,
		events: make(chan Event, 16), done: make(chan struct{}),
	}
	go c.listen()
	return c, nil
}

// interruptedPatience is how long askToStart waits for an answer after ctx has ended.
const interruptedPatience = time.Second

// askToStart sends the guard a request to start, and returns its answer.
func (g *Guard) askToStart(ctx context.Context, spec Spec) (pid int, born boottime.Instant, err error) {
	timeOut := func(after time.Duration) { _ = g.control.SetDeadline(time.Now().Add(after)) }
	timeOut(boottime.Until(spec.Deadline))
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		timeOut(min(interruptedPatience, boottime.Until(spec.Deadline)))
	})
	var answer startAnswer
	if err = writeMessage(g.control, msgStart, g.encoded(spec)); err == nil {
		pid, born, err = g.awaitStart(&answer, spec)
	}
	// EPIPE: the guard's end was closed before the request was whole. ECONNRESET: it was closed
	// while a part of the request was unread, as Linux says of such a socket (unix_release_sock).
	// The end of the stream: it was closed later.
	switch {
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		err = ErrNotStarted
	case errors.Is(err, io.EOF):
		err = errStartUnknown
	case errors.Is(err, errTooLong):
		err = &LookupError{Name: spec.Args[0], err: unix.E2BIG} // as the kernel would say
	}
	if !stop() {
		<-interrupted
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// If this process was stopped, the answer has arrived by now.
		timeOut(10 * time.Millisecond)
		pid, born, err = g.awaitStart(&answer, spec)
	}
	_ = g.control.SetDeadline(time.Time{})
	return pid, born, err
}

func (g *Guard) encoded(spec Spec) []byte {
	spec.KeepGuard = spec.KeepGuard && g.parent.noTerminal()
	return spec.encode()
}

// awaitStart reads the answer to a start request, or the rest of it.
func (g *Guard) awaitStart(answer *startAnswer, spec Spec) (pid int, born boottime.Instant, err error) {
	k, n, born, err := answer.read(g.control)
	switch {
	case err != nil:
		return 0, 0, err
	case k == msgFailed:
		if n == tooLate {
			return 0, 0, ErrLeaseOver
		}
		errno := syscall.Errno(n)
		missing := errno == syscall.ENOENT
		if missing {
			if err := interpreted(spec.Path); err != nil {
				return 0, 0, err
			}
		}
		return 0, 0, &LookupError{Name: spec.Args[0], NotFound: missing, err: errno}
	case k != msgStarted:
		return 0, 0, errors.New("the guard process answers nonsense")
	}
	return int(n), born, nil
}
