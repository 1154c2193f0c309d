package lock

import (
	"context"
	"errors"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// When the session of a waiter is lost, this happens, in this order:
//
//	waiter.awaitNews   sees the loss, which is also an answer that has not come by the deadline
//	Candidate.attempt  keeps the ticket and the rank, undoes the preparation, and closes the session
//	Candidate.outlast  pauses: the first in line briefly, the others longer and longer
//	Candidate.attempt  opens a session without a first try, which might pass those in line
//	waiter.join        ends the session that it had, if the server still has it; listens, takes its
//	                   old ticket and its mark, and looks
//	Bid.verdict        what the waiter had heard is gone: if it hears nothing more, and there is no
//	                   ledger, a grant is held for the lock-delay

// outlast pauses after an attempt that failed for a reason that passes by itself: a server that
// restarts, has no room, or is a standby until it is promoted, or a session that was lost. A run that
// waits rides these out. Otherwise, or when the time is up, it returns the error.
func (c *Candidate) outlast(ctx context.Context, p *pauses, err error) error {
	cfg := &c.cfg
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	cfg.Session.Database = session.Elsewhere(cfg.Session.Database, err)
	if isFull(err) {
		c.past |= crowded
	}
	rest := p.next(c.rank, err)
	if isFull(err) && cfg.Wait > 0 {
		rest = pace.Between(crowd.AwayBounds(p.full))
	}
	rest = crowd.AwayFor(rest, c.left())
	persists := session.Passing(err) || cfg.Endures && c.Reached()
	if !persists || c.left() <= rest {
		return err
	}
	cfg.Observer.away(err)
	if reason := err.Error(); reason != p.said || rest > frontAgain {
		p.said = reason
		cfg.Log.Info("waiting for the database", "event", "waiting", "reason", reason, "retry_in", rest)
	}
	if !pace.Sleep(ctx, rest) {
		return context.Cause(ctx)
	}
	return nil
}

// left is what is left of the wait.
func (c *Candidate) left() time.Duration { return c.cfg.Wait - time.Since(c.began) }

// pauses are those between attempts to connect. Each is a random part of a backoff that doubles,
// so that the waiters don't overrun a server that comes up again. The first in line, on which the
// next command depends, pause for frontAgain at most, for as long as frontFor. If a server answers that
// it is not ready, they go by front, which doubles, too: each attempt is a line in that server's log.
type pauses struct {
	backoff, front *pace.Backoff
	since          time.Time     // when the session was lost
	full           *pace.Backoff // for a server that has no room
	said           string        // the reason that the log has
}

const (
	backoffFirst = 200 * time.Millisecond
	backoffMost  = 5 * time.Second
	frontAgain   = 250 * time.Millisecond
	frontFor     = time.Minute
)

func frontBackoff() *pace.Backoff { return pace.Doubling(50*time.Millisecond, backoffMost) }

func newPauses() *pauses {
	p := &pauses{full: crowd.CrowdedBackoff()}
	p.restart()
	return p
}

func (p *pauses) restart() {
	p.since, p.backoff = time.Now(), pace.Doubling(backoffFirst, backoffMost)
	p.front = frontBackoff()
}

// next is the pause after an attempt that has failed. rank is Candidate.rank.
func (p *pauses) next(rank int, err error) time.Duration {
	if errors.As(err, new(*session.LostError)) {
		p.restart()
	}
	atFront := rank > 0 && rank <= crowd.MostWatchers
	var e *session.Error
	switch {
	case atFront && errors.As(err, &e) && e.LoginRejected:
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

// Open opens a session for bids of the caller's own, and calls ready with it. It waits as Acquire does.
func (c *Candidate) Open(ctx context.Context, ready func(*session.Session) error) (*session.Session, error) {
	c.begin()
	for p := newPauses(); ; {
		s, err := c.open(ctx, "")
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

// open opens a session whose login carries an SQL expression, or none.
func (c *Candidate) open(ctx context.Context, firstTry string) (s *session.Session, err error) {
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

// askForRoom calls open again if the server has no room, as when a thousand nodes fire
// at once, for as long as one attempt to connect may take. It does so for a run that
// doesn't wait for the lock; one that waits comes back later.
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

// warnOfLedger logs, once in a wait, that the database has a ledger which is not used, since
// it can't be trusted, or is not granted to the role.
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
