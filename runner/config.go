package runner

import (
	"os"
	"time"

	"github.com/pglead/pglead/runner/lock"
)

// Config says what to run, and under which lock.
type Config struct {
	Lock lock.Config // which lock to take, and how to get it

	// Splay limits the random time that Run waits before the first try. Without it the
	// fastest node would do all the work.
	Splay time.Duration

	Path    string // the command's file, from child.Lookup
	Command []string
	Env     []string // the command's, without the PGLEAD_… variables that describe its lock
	Stdin   *os.File // the command's; nil is this process's own

	Timeout          time.Duration // 0: none
	KillAfterTimeout time.Duration // from the SIGTERM at Timeout to SIGKILL; 0: never
	KillAfterSignal  time.Duration // from a forwarded signal to SIGKILL; 0: never
	WaitForLeftovers bool          // the run ends with what the command left running; otherwise that is killed

	// MinHold is how long the lock is held, counted from the command's start, even if the
	// command ends earlier.
	MinHold time.Duration

	Hooks           Hooks
	CommandObserver CommandObserver
}

// CommandObserver is told of the command, and of each pause before a wait for the locks.
// Config.Lock.Observer is told of the wait itself. Each of its functions may be nil, and may block
// for a second at most, as when systemd does not read.
type CommandObserver struct {
	// Started is called when the command has been started.
	Started func()
	// NextTry is called when this node has no lock and doesn't wait for it, with the time at which
	// it tries next. After the loss of a lock that is at once.
	NextTry func(at time.Time)
	// Interrupted is called when a signal asks the command, and this process with it, to end.
	Interrupted func()
}

func (o CommandObserver) sayStarted() {
	if o.Started != nil {
		o.Started()
	}
}

func (o CommandObserver) sayNextTry(at time.Time) {
	if o.NextTry != nil {
		o.NextTry(at)
	}
}

func (o CommandObserver) sayInterrupted() {
	if o.Interrupted != nil {
		o.Interrupted()
	}
}
