package runner

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// Config is one run.
type Config struct {
	Keys  []string // what the command gets to know about Claim
	Claim lock.Claim

	Session session.Config // LostGrace included
	Wait    time.Duration  // for the lock: 0 tries once, Forever has no end

	// Splay is the most that Run waits, at random, before the first try: else the
	// fastest node does all the work.
	Splay time.Duration

	// LockDelay is how long a former holder may live on without knowing that
	// it has lost: so long is waited, with the lock held, where its end is not
	// known to be clean. See package lock.
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

// LevelNotice is that of taking and giving back the lock: between warning and
// info, as syslog's notice is.
const LevelNotice = slog.LevelInfo + 2
