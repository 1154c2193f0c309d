package runner

import (
	"log/slog"
	"os"
	"time"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// Config says what to run, and under which lock.
type Config struct {
	Keys  []string // of Claim, as the command is told them
	Claim lock.Claim

	Session session.Config
	Wait    time.Duration // for the lock: 0 tries once, Forever has no end

	// Description is what the session says of itself, to which a grant adds.
	Description inspect.Description

	// Splay is the most that Run waits, at random, before the first try. Without
	// it the fastest node would do all the work.
	Splay time.Duration

	// LostGrace is what the command gets between SIGTERM and SIGKILL when the lock is lost.
	LostGrace time.Duration

	// LockDelay is how long a former holder may live on without knowing that it
	// has lost the lock. Run waits that long, with the lock held, unless the former
	// holder's end is known to be clean. See package lock.
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

	// Ledger says how the run is remembered, if the database has a ledger.
	Ledger ledger.Use

	// Explain has a refusal name the lock's holder, which costs one more question
	// to the server.
	Explain bool

	Watch Watch
	Hooks Hooks
	Log   *slog.Logger
}

// LevelNotice is the level of taking and giving back the lock.
const LevelNotice = lock.LevelNotice

// Watch is told how a whole run goes on: to the wait it adds what comes before and after
// it, of which package lock knows nothing. Each of its functions may be nil, and must not
// block.
type Watch struct {
	lock.Observer
	// Leading is told that the command has been started.
	Leading func()
	// Resting is told when this node, which doesn't lead, stands for election next.
	Resting func(until time.Time)
	// Ending is told that this process has been asked to end.
	Ending func()
}

func (w Watch) resting(d time.Duration) {
	if w.Resting != nil && d > 0 {
		w.Resting(time.Now().Add(d))
	}
}
