package lock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// Candidate wants a claim, and keeps what outlasts each of its sessions. When its run is over,
// it may stand again.
type Candidate struct {
	cfg     Config // the host to try next is the first in its DSN
	reached bool   // the database has answered for the lock
	last    *Held  // what its last attempt was granted, or nil
	wait    wait   // the current one
}

// wait is what a candidate keeps from one session to the next while it waits.
type wait struct {
	began     time.Time
	returning bool // it had a session before
	warned    bool // the log says that a ledger is not used
	front     bool // it had the lock, or was one of the first in line, which come back sooner after an outage

	// former is where its last session stood in line, if it did. The server may still have that
	// session.
	former struct{ ticket, backend uint32 } // ticket 0: nowhere

	unended map[lockkey.ID][]int64 // listener.openStarts of an earlier session

	// Between attempts to connect (see pause):
	since      time.Time     // when the last session was lost, or the attempts began
	backoff    *pace.Backoff // for a server that may be down
	rejected   *pace.Backoff // for one that answers the first in line with an error
	denied     *pace.Backoff // for one that refuses the login
	crowded    *pace.Backoff // for a server that has no room; nil until it had none
	said       string        // the reason that was logged last
	hostsTried int           // how often a run that doesn't wait has gone on to another host
}

func newWait() wait {
	w := wait{began: time.Now()}
	w.restartPauses()
	return w
}

// NewCandidate returns a candidate that has done nothing yet.
func NewCandidate(cfg Config) *Candidate { return &Candidate{cfg: cfg} }

// begin begins a wait. The candidate remembers from an earlier wait where the database was and, if
// the lock was lost, comes back sooner.
func (c *Candidate) begin() {
	c.wait = newWait()
	if c.last == nil {
		return
	}
	lost := c.last.Err()
	c.cfg.Session.Database, _ = session.Elsewhere(c.cfg.Session.Database, lost)
	c.wait.front = lost != nil
}

// timeLeft is what is left of the wait.
func (c *Candidate) timeLeft() time.Duration { return c.cfg.Wait - time.Since(c.wait.began) }

// Reached says whether the database has ever answered for the lock.
func (c *Candidate) Reached() bool { return c.reached }

// noteAnswer notes that the database has answered for the lock. From then on a candidate that
// Endures waits out every error.
func (c *Candidate) noteAnswer() {
	c.cfg.Observer.away(nil)
	c.reached = true
}

// Acquire opens a session, takes the lock on it, and returns when a command may be started under
// it. It waits out any obstacle that passes by itself, for as long as Config.Wait allows. It calls
// prepare, unless that is nil, at most once for each session: just before a wait, or else after a
// try that has succeeded, beside the questions to the server. A run that is refused without a wait
// doesn't need it. Errors are
//
//	*ConflictError                            somebody else has the lock
//	*ledger.PausedError, *ledger.DoneError    the ledger says that nobody should start
//	*LedgerError                              the ledger can't be written
//	*ledger.FencedError                       a transaction of the last run is still open
//	*session.Error, *session.LostError        the server can't be reached, or used, or is gone
//
// and otherwise ctx's cause, or an error of prepare. If ctx ends while the start is under way at
// the server, Acquire may succeed all the same: the caller then gives the locks back.
func (c *Candidate) Acquire(ctx context.Context, prepare Prepare) (*Held, error) {
	err := c.persist(ctx, func() (err error) {
		c.last, err = c.acquireOnce(ctx, prepare)
		return err
	})
	return c.last, err
}

// persist calls attempt until it succeeds, or fails for a reason that isn't waited out.
func (c *Candidate) persist(ctx context.Context, attempt func() error) error {
	c.begin()
	for {
		err := attempt()
		if err == nil {
			return nil
		}
		if err = c.outlast(ctx, err); err != nil {
			return err
		}
	}
}

// acquireOnce is what Acquire does with one session.
func (c *Candidate) acquireOnce(ctx context.Context, prepare Prepare) (*Held, error) {
	firstTry := ""
	if !c.wait.returning && !c.cfg.Session.Quorum {
		firstTry = c.cfg.firstTrySQL()
	}
	s, err := c.openSession(ctx, firstTry)
	if err != nil {
		return nil, err
	}
	w := c.newWaiter(s, prepare)
	c.wait.returning = true
	held, err := w.acquire(ctx)
	if err != nil {
		c.abandon(ctx, w, err)
		return nil, err
	}
	return held, nil
}

// abandon ends the session of a waiter that has failed with err, and keeps what the next session
// has to know. It gives back what was granted: otherwise the next attempt, or the next run in a
// script, could still find the locks held. What a lost session had is left to the report.
func (c *Candidate) abandon(ctx context.Context, w *waiter, err error) {
	if w.place.everJoined() && w.place.ticket != 0 {
		c.wait.former.ticket, c.wait.former.backend = w.place.ticket, w.Session.BackendPID()
		if w.turn.Rank > 0 {
			c.wait.front = w.turn.Rank <= crowd.MostWatchers
		}
	}
	if w.Session.Err() == nil && (errors.As(err, new(*LedgerError)) || session.AnsweredError(err) != nil || errors.Is(err, session.ErrUnconfirmed)) {
		late, cancel := lateAfter(ctx) // the run may be asked to end by now, and its start was announced
		_ = w.giveBack(late)
		cancel()
	}
	w.Session.Close()
	c.wait.unended = w.listener.openStarts()
	w.preparation.giveUp() // waits for the guard's start, which a debugger may delay
	w.reportUnstarted(ctx)
}

// openSession opens a session, whose login carries the first try, if that isn't empty (firstTrySQL).
func (c *Candidate) openSession(ctx context.Context, firstTry string) (s *session.Session, err error) {
	of := c.cfg.sessionConfig()
	of.Trying = func() { c.cfg.SayTrying(0) }
	of.FirstTry = firstTry
	of.LoginQuestion = cmp.Or(c.cfg.Ledger.QuestionSQL(of.Transaction), of.LoginQuestion)
	open := func() error {
		s, err = session.Open(ctx, of)
		return err
	}
	if c.cfg.Wait > 0 { // it comes back later
		of.ConnectTimeout = min(of.ConnectTimeout, max(c.timeLeft(), time.Second))
		err = open()
	} else {
		err = askForRoom(ctx, of.ConnectTimeout, open)
	}
	if err != nil {
		return nil, ledger.LoginError(err)
	}
	if _, err = c.cfg.Ledger.Applies(s.LoginAnswer()); err != nil {
		// Otherwise the next run in a script could still find held what the first try got. Behind a
		// pooler the end of the login's statement has freed it.
		if !of.Transaction {
			_, _ = s.Query(ctx, "SELECT pg_catalog.pg_advisory_unlock_all()")
		}
		s.Close()
		return nil, err
	}
	c.warnOfLedger(s)
	return s, nil
}

// askForRoom calls open again while the server has no room, for instance because a thousand nodes
// start at once, but for no longer than most.
func askForRoom(ctx context.Context, most time.Duration, open func() error) error {
	began, backoff := time.Now(), crowd.FullBackoff()
	for {
		err := open()
		if err == nil || !isFull(err) {
			return err
		}
		rest := backoff.Half()
		if time.Since(began)+rest > most {
			return err
		}
		if !pace.Sleep(ctx, rest) {
			return context.Cause(ctx)
		}
	}
}

// warnOfLedger logs, once in a wait, that the database has a ledger, and that it is not used
// because it can't be trusted or because the role has no access.
func (c *Candidate) warnOfLedger(s *session.Session) {
	if c.wait.warned {
		return
	}
	switch access, role := ledger.ParseAccess(s.LoginAnswer()); access {
	case ledger.Foreign:
		c.cfg.Log.Warn(ledger.Untrusted+"; going on without a ledger", "event", "ledger")
	case ledger.Denied:
		c.cfg.Log.Info("the ledger is not granted to role "+visible.Text(role)+"; going on without", "event", "ledger")
	default:
		return
	}
	c.wait.warned = true
}

func isFull(err error) bool {
	var e *session.Error
	return errors.As(err, &e) && e.Full
}

// outlast pauses after an attempt that failed for a reason that passes by itself: a session that
// was lost, or a server that restarts, has no room, or is a standby that may be promoted. A run
// that waits survives these. A run that doesn't wait only goes on to the next host where the fault
// is one host's, such as a primary that a failover left behind. Otherwise, or when the time is up,
// outlast returns the error.
//
// When the session of a waiter is lost, this happens, in this order:
//
//	waiter.sleep       notices the loss; an answer that misses its deadline is a loss, too
//	abandon            keeps former and front, closes the session, and gives up what was prepared
//	Candidate.outlast  pauses: the first in line briefly, the others longer and longer
//	acquireOnce        opens a session without a first try, which might overtake those in line
//	waiter.join        ends the old session, if the server still has it; listens, takes its
//	                   old ticket and its mark, and looks
//	bid.verdictOn      the waiter has lost what it had heard: if it hears nothing more, a grant is
//	                   held for the lock-delay, unless a ledger knows the ends of all starts of
//	                   which it had heard (listener.unended)
func (c *Candidate) outlast(ctx context.Context, err error) error {
	cfg, w := &c.cfg, &c.wait
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	database, others := session.Elsewhere(cfg.Session.Database, err)
	cfg.Session.Database = database
	if cfg.Wait == 0 && w.hostsTried < others {
		w.hostsTried++
		w.returning, w.crowded = false, nil // it is new there
		return nil
	}
	rest := crowd.AwayFor(w.pause(err), c.timeLeft())
	waitsOut := session.Passing(err) || cfg.Endures && c.Reached()
	if !waitsOut || c.timeLeft() <= rest {
		return err
	}
	cfg.Observer.away(err)
	if reason := err.Error(); reason != w.said || rest > frontAgain {
		w.said = reason
		cfg.Log.Info("waiting for the database", "event", "waiting", "reason", reason, "retry_in", rest)
	}
	cfg.SayTrying(rest)
	if !pace.Sleep(ctx, rest) {
		return context.Cause(ctx)
	}
	return nil
}

const (
	frontAgain = 250 * time.Millisecond
	frontFor   = time.Minute
)

// pause is how long to pause after an attempt that has failed: a random part of a backoff that
// doubles, so that the waiters don't overrun a server that comes up again. The first in line, on
// which the next command depends, pause for frontAgain at most, but only for the time frontFor. If
// a server answers with an error, such as that it isn't ready, they use rejected, which doubles,
// too: each such attempt leaves a line in that server's log. If a server refuses the login, all use
// denied.
func (w *wait) pause(err error) time.Duration {
	if errors.As(err, new(*session.LostError)) {
		w.restartPauses()
	}
	var e *session.Error
	rejectsLogin := errors.As(err, &e) && e.LoginRejected
	switch {
	case isFull(err):
		if w.crowded == nil {
			w.crowded = crowd.CrowdedBackoff()
		}
		return pace.Between(crowd.NextAway(w.crowded))
	case rejectsLogin && e.Kind == session.Denied:
		return w.denied.Half()
	case w.front && (rejectsLogin || session.AnsweredError(err) != nil):
		return w.rejected.Half()
	case !w.front || time.Since(w.since) > frontFor:
		return w.backoff.Half()
	}
	w.rejected = crowd.UrgentBackoff()
	return pace.Between(frontAgain/2, frontAgain)
}

func (w *wait) restartPauses() {
	w.since, w.backoff, w.rejected, w.denied = time.Now(), crowd.AwayBackoff(), crowd.UrgentBackoff(), crowd.DeniedBackoff()
}
