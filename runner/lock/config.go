package lock

import (
	"log/slog"
	"math"
	"time"

	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// Config says what to hold, and how to wait for it.
type Config struct {
	Claim   Claim
	Session session.Config
	Wait    time.Duration // 0 tries once, Forever has no end

	// Description is what sessions say of the run and its host. describe adds the settings, and a
	// grant adds the token.
	Description describe.Description

	// LostGrace is what the command gets between SIGTERM and SIGKILL when the lock is lost.
	// Holders announce it.
	LostGrace time.Duration

	// LockDelay is how long a former holder's command may live on after the loss of its lock.
	// Without evidence that it is dead, a new holder waits for that long before the start. With 0
	// it never waits.
	LockDelay time.Duration

	// PrivateServer says that only this user on this machine can reach the server. There a first try
	// waits for the rest of the lost-grace at most.
	PrivateServer bool

	// Endures makes a wait survive every error once the database has answered for the lock.
	// Otherwise it survives only errors that pass by themselves.
	Endures bool

	// Ledger says how the run uses a ledger, if the database has one.
	Ledger ledger.Use

	Observer Observer
	Log      *slog.Logger

	// LongDelay: a longer lock-delay than this is logged as a warning.
	LongDelay time.Duration

	ofList bool // the session is a List's, which outlives the lock, and may have others
}

// Forever is a wait without end.
const Forever = time.Duration(math.MaxInt64)

// LevelNotice is the level of what happens to the lock. lead shows it without -v. It lies between
// info and warning, like syslog's notice.
const LevelNotice = slog.LevelInfo + 2

// AttemptMost is longer than an attempt can take from the last address that it tries: the
// connection, a second one, the lock-delay, and some questions, each shorter than the lease.
func (cfg *Config) AttemptMost() time.Duration {
	return 2*cfg.Session.ConnectTimeout + cfg.LockDelay + 4*cfg.Session.Lease
}

// sessionConfig is the configuration of a session.
func (cfg *Config) sessionConfig() session.Config {
	of := cfg.Session
	of.Comment = cfg.describe().Comment()
	return of
}

// describe is what the sessions say of themselves before a grant: Description, and the settings by
// which others judge how long a command may be alive.
func (cfg *Config) describe() describe.Description {
	d := cfg.Description
	d.Lease, d.LostGrace, d.Transaction = cfg.Session.Lease, cfg.LostGrace, cfg.Session.Transaction
	return d
}

// showsToken says whether the session's name shows the token. A list's session, which has several
// tokens, shows none, and neither does doctor's, whose name is not a holder's.
func (cfg *Config) showsToken() bool {
	_, holders := describe.ParseName(cfg.Session.ApplicationName)
	return holders && !cfg.ofList
}
