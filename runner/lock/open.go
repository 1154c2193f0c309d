package lock

import (
	"context"
	"errors"
	"time"

	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// AttemptMost is more than one attempt can take: the connection to each host, a second
// connection, the lock-delay, and some questions, each shorter than the lease.
func (cfg *Config) AttemptMost() time.Duration {
	hosts := 1 + len(cfg.Session.Database.Fallbacks)
	return time.Duration(hosts+1)*cfg.Session.ConnectTimeout + cfg.LockDelay + 4*cfg.Session.Lease
}

// session is the configuration of a session.
func (cfg *Config) session() session.Config {
	of := cfg.Session
	of.Comment = cfg.Describe().Comment()
	return of
}

// Describe is what the sessions say of themselves before a grant: Description, and the settings by which
// others judge how long a command may be alive.
func (cfg *Config) Describe() describe.Description {
	d := cfg.Description
	d.Lease, d.LostGrace, d.Transaction = cfg.Session.Lease, cfg.LostGrace, cfg.Session.Transaction
	return d
}

// Open opens a session for bids of the caller's own, and calls ready with it. It waits as Acquire does.
func (c *Candidate) Open(ctx context.Context, ready func(*session.Session) error) (*session.Session, error) {
	c.begin()
	for p := newPauses(); ; {
		s, err := c.openSession(ctx, "")
		if err == nil {
			if err = ready(s); err == nil {
				c.cfg.Observer.away(nil)
				return s, nil
			}
			s.Close()
		}
		if err = c.outlast(ctx, p, err); err != nil {
			return nil, err
		}
	}
}

// openSession opens a session whose login carries the SQL expression firstTry, or none.
func (c *Candidate) openSession(ctx context.Context, firstTry string) (s *session.Session, err error) {
	c.cfg.Observer.SayAlive(c.cfg.AttemptMost())
	of := c.cfg.session()
	of.FirstQuestion, of.LedgerQuestion = firstTry, c.cfg.Ledger.Question(of.Transaction)
	if c.cfg.Wait > 0 {
		of.ConnectTimeout = min(of.ConnectTimeout, max(c.left(), time.Second))
	}
	err = askForRoom(ctx, &c.cfg, func() error {
		s, err = session.Open(ctx, of)
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, err = c.cfg.Ledger.Applies(s.LedgerAnswer()); err != nil {
		if !of.Transaction { // behind a pooler the end of the login's statement has freed what the first try got
			_, _ = s.Query(ctx, "SELECT pg_catalog.pg_advisory_unlock_all()") // or the next run of a script would find it held
		}
		s.Close()
		return nil, err
	}
	c.warnOfLedger(s)
	return s, nil
}

// askForRoom calls open again while the server has no room, as when a thousand nodes start
// at once, for as long as one attempt to connect may take. It does so only for a run that
// doesn't wait for the lock; a waiting run comes back later.
func askForRoom(ctx context.Context, cfg *Config, open func() error) error {
	began, backoff := time.Now(), crowd.FullBackoff()
	for {
		err := open()
		if err == nil || cfg.Wait > 0 || !isFull(err) {
			return err
		}
		rest := backoff.Half()
		if time.Since(began)+rest > cfg.Session.ConnectTimeout {
			return err
		}
		if !pace.Sleep(ctx, rest) {
			return context.Cause(ctx)
		}
	}
}

// warnOfLedger logs, once in a wait, that the database has a ledger which is not used because
// it can't be trusted, or because the role has no access.
func (c *Candidate) warnOfLedger(s *session.Session) {
	if c.past.has(warned) {
		return
	}
	switch ledger.AccessBy(s.LedgerAnswer()) {
	case ledger.Foreign:
		c.cfg.Log.Warn(ledger.Untrusted+"; going on without a ledger", "event", "ledger")
	case ledger.Denied:
		c.cfg.Log.Info("the ledger is not granted to role "+c.cfg.Session.Database.User+"; going on without", "event", "ledger")
	default:
		return
	}
	c.past |= warned
}

func isFull(err error) bool {
	var e *session.Error
	return errors.As(err, &e) && e.Full
}
