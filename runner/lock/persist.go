package lock

import (
	"context"
	"errors"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// answered notes that the database has answered: it is one to wait for.
func (cfg *Config) answered() {
	cfg.Observer.away(nil)
	if cfg.Reached != nil {
		*cfg.Reached = true
	}
}

// Persist calls try again while it fails for reasons that pass by themselves: a server
// that restarts, has no room, or is a standby until it is promoted, or a session that is
// lost meanwhile. A run that waits rides these out. When the time is up the last obstacle
// is the error. The time of Config.Wait begins now.
func (cfg *Config) Persist(ctx context.Context, try func() error) error {
	cfg.until = time.Now().Add(cfg.Wait)
	crowded, pauses, said := CrowdedBackoff(), newPauses(), ""
	for {
		cfg.Observer.SayAlive(cfg.AttemptMost())
		err := try()
		if err == nil {
			cfg.Observer.away(nil)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var rest time.Duration
		if isFull(err) && cfg.Wait > 0 {
			rest = AwayFor(pace.Between(AwayBounds(crowded)), cfg.left())
		} else {
			rest = pauses.next(cfg.Rank, err)
		}
		persists := session.Passing(err) || cfg.Reached != nil && *cfg.Reached
		if !persists || cfg.left() <= rest {
			return err
		}
		cfg.Observer.away(err)
		if reason := err.Error(); reason != said || rest > frontAgain {
			said = reason
			cfg.Log.Info("waiting for the database", "event", "waiting", "reason", reason, "retry_in", rest)
		}
		if !pace.Sleep(ctx, rest) {
			return context.Cause(ctx)
		}
	}
}

// left is what is left of the wait.
func (cfg *Config) left() time.Duration {
	if cfg.Wait == Forever {
		return Forever
	}
	return time.Until(cfg.until)
}

// pauses are those between attempts to connect. They double, so that the waiters don't
// overrun a server that comes up again. But the first in line, on which the next command
// depends, don't pause for longer than frontAgain while nobody answers, for frontFor. A
// server that answers that it is not ready writes a line to its log each time.
type pauses struct {
	backoff, front *pace.Backoff
	since          time.Time // when the session was lost
}

func newPauses() *pauses {
	p := &pauses{}
	p.restart()
	return p
}

func (p *pauses) restart() {
	p.since, p.backoff = time.Now(), pace.Doubling(backoffFirst, backoffMost)
	p.front = frontBackoff()
}

// next is the pause after an attempt that has failed. rank is Config.Rank.
func (p *pauses) next(rank int, err error) time.Duration {
	if errors.As(err, new(*session.LostError)) {
		p.restart()
	}
	atFront := rank > 0 && rank <= MostWatchers
	var refused *session.Error
	switch {
	case atFront && errors.As(err, &refused) && refused.Answered:
		return p.front.Half()
	case !atFront || time.Since(p.since) > frontFor:
		return p.backoff.Half()
	}
	p.front = frontBackoff()
	return pace.Between(frontAgain/2, frontAgain)
}

// AttemptMost is more than one attempt can take: the connection to each host, a second
// connection, the lock-delay, and some questions, each shorter than the lease.
func (cfg *Config) AttemptMost() time.Duration {
	hosts := 1 + len(cfg.Session.Database.Fallbacks)
	return time.Duration(hosts+1)*cfg.Session.ConnectTimeout + cfg.LockDelay + 4*cfg.Session.Lease
}

// session is the configuration of a session.
func (cfg *Config) session() session.Config {
	of := cfg.Session
	of.Comment = cfg.Description.Comment()
	return of
}

// OpenSession opens a session for a run.
func (cfg *Config) OpenSession(ctx context.Context) (s *session.Session, err error) {
	of := cfg.session()
	of.LedgerQuestion = cfg.Ledger.Question(of.Transaction)
	if cfg.Wait > 0 {
		of.ConnectTimeout = min(of.ConnectTimeout, max(cfg.left(), time.Second))
	}
	err = cfg.askForRoom(ctx, func() error {
		s, err = session.Open(ctx, of)
		return err
	})
	if err != nil {
		return nil, err
	}
	if _, err = cfg.Ledger.Applies(s.LedgerAnswer()); err != nil {
		closeAtOnce(ctx, s, of.Transaction)
		return nil, err
	}
	return s, nil
}

// askForRoom calls open again if the server has no room, as when a thousand nodes fire
// at once, for as long as one attempt to connect may take. It does so for a run that
// doesn't wait for the lock; one that waits comes back later.
func (cfg *Config) askForRoom(ctx context.Context, open func() error) error {
	began, backoff := time.Now(), FullBackoff()
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

// closeAtOnce closes a session whose login may have taken locks, and frees them first, or
// the next run of a script would find them held. Behind a pooler the end of the login's
// statement has freed them.
func closeAtOnce(ctx context.Context, s *session.Session, pooled bool) {
	if !pooled {
		_, _ = s.Query(ctx, "SELECT pg_catalog.pg_advisory_unlock_all()")
	}
	s.Close()
}

// SayWithoutLedger logs that the database has a ledger which is not used, since it can't
// be trusted, or is not granted to the role. It returns whether it logged anything.
func (cfg *Config) SayWithoutLedger(s *session.Session) (said bool) {
	switch {
	case cfg.Ledger.Foreign(s.LedgerAnswer()):
		cfg.Log.Warn(ledger.Untrusted+"; going on without a ledger", "event", "ledger")
	case cfg.Ledger.Denied(s.LedgerAnswer()):
		cfg.Log.Info("the ledger is not granted to role "+cfg.Session.Database.User+"; going on without", "event", "ledger")
	default:
		return false
	}
	return true
}

func isFull(err error) bool {
	var refused *session.Error
	return errors.As(err, &refused) && refused.Full
}
