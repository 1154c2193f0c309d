package lock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// Config says what to hold, and how to wait for it.
type Config struct {
	Claim   Claim
	Session session.Config
	Wait    time.Duration // 0 tries once, Forever has no end

	// OfList says that the lock is one of a list's. The session goes on after the release, for
	// other locks of the list, and may hold several at once, so its name shows no token. Other
	// workers on the list come back for a lock without standing in line, so starts and clean ends
	// are announced even if nobody stands there.
	OfList bool

	// Description is what sessions say of the run and its host. Describe adds the settings, and a grant
	// adds the token.
	Description describe.Description

	// LostGrace is what the command gets between SIGTERM and SIGKILL when the lock is lost.
	// Holders announce it.
	LostGrace time.Duration

	// LockDelay is how long a former holder's command may live on after the loss of its
	// lock. Without evidence that it is dead, a new holder waits for that long
	// before the start. 0 means never.
	LockDelay time.Duration

	// Explain makes a refusal name the holders of the lock, which takes one more
	// question to the server.
	Explain bool

	// Endures makes a wait survive every error once the database has answered for the lock.
	// Otherwise it survives only errors that pass by themselves.
	Endures bool

	// Ledger is what remembers the run, if the database has one.
	Ledger ledger.Use

	Observer Observer
	Log      *slog.Logger
}

// Forever is a wait without end.
const Forever = time.Duration(math.MaxInt64)

// Candidate wants a claim, and keeps what outlasts each of its sessions. When a
// tenure is over, it may stand for the next one.
type Candidate struct {
	cfg   Config // the host to try next is the first of its database
	past  past
	last  *Held     // what it was granted last, or nil
	began time.Time // when the current wait did

	// In its last session:
	rank   int    // its place in line: 1 if it had the lock, 0 if it had no place. The first in line come back sooner after an outage.
	ticket uint32 // of the current wait, or 0
	ghost  uint32 // the session that had that ticket, which the server may still have; or 0
}

// past is what has happened to a candidate. It is a set.
type past uint8

const (
	reached past = 1 << iota // the database has answered for the lock

	// In the current wait:
	returned // it had a session before
	crowded  // the server had no room for it
	warned   // the log says that a ledger is not used
)

func (p past) has(events past) bool { return p&events != 0 }

// NewCandidate returns a candidate that has done nothing yet.
func NewCandidate(cfg Config) *Candidate { return &Candidate{cfg: cfg} }

// begin begins a wait. The candidate remembers from an earlier wait where the database was and, if
// the lock was lost, gets rank 1, with which it comes back sooner.
func (c *Candidate) begin() {
	*c = Candidate{cfg: c.cfg, past: c.past & reached, last: c.last, began: time.Now()}
	if c.last == nil {
		return
	}
	c.cfg.Session.Database = session.Elsewhere(c.cfg.Session.Database, c.last.Err())
	if c.last.wasLost() {
		c.rank = 1
	}
}

// Reached says whether the database has ever answered for the lock.
func (c *Candidate) Reached() bool { return c.past.has(reached) }

// answered notes that the database has answered for the lock. From then on an outage is waited out.
func (c *Candidate) answered() {
	c.cfg.Observer.away(nil)
	c.past |= reached
}

// Acquire opens a session, takes the lock on it, and returns when a command may be
// started under it. It waits out any obstacle that passes by itself, for as long
// as Config.Wait allows. It calls prepare, unless that is nil, once for each session, in parallel
// with the questions to the server or the wait: there the caller prepares what the command
// needs. If the session is given up, the function that prepare returned undoes that.
// Errors are
//
//	*ConflictError                            somebody else has it
//	*ledger.PausedError, *ledger.DoneError    the ledger says that nobody should start
//	*LedgerError                              the ledger can't be written
//	*session.Error, *session.LostError        the server can't be reached, or used, or is gone
//
// and otherwise ctx's cause, or an error of prepare.
func (c *Candidate) Acquire(ctx context.Context, prepare func(*session.Session) (abandon func(), err error)) (*Held, error) {
	c.begin()
	for p := newPauses(); ; {
		held, err := c.attempt(ctx, prepare)
		if err == nil {
			held.Took = time.Since(c.began)
			c.last = held
			return held, nil
		}
		if err = c.outlast(ctx, p, err); err != nil {
			c.last = nil
			return nil, err
		}
	}
}

// attempt is what Acquire does with one session.
func (c *Candidate) attempt(ctx context.Context, prepare func(*session.Session) (func(), error)) (*Held, error) {
	returning, firstTry := c.past.has(returned), ""
	if !returning { // else it has a place in line, and must not pass those before it
		firstTry = c.cfg.firstTrySQL()
	}
	s, err := c.openSession(ctx, firstTry)
	if err != nil {
		return nil, err
	}
	c.past |= returned
	w := &waiter{Bid: NewBid(s, c.cfg, returning), candidate: c, returning: returning, turn: turn{own: s.BackendPID(), lease: c.cfg.Session.Lease}}
	w.preparation, w.place.ticket = newPreparation(s, prepare), c.ticket
	held, err := w.takeAfterPauses(ctx)
	if err != nil {
		if w.place.joined() && w.place.ticket != 0 {
			c.ticket, c.ghost, c.rank = w.place.ticket, s.BackendPID(), cmp.Or(w.turn.rank, c.rank)
		}
		w.preparation.abandon()
		if errors.As(err, new(*LedgerError)) { // or the next run of a script would find them held
			_ = w.GiveBack(ctx)
		}
		s.Close()
		w.tellUnstarted(ctx)
		return nil, err
	}
	return held, nil
}

// takeAfterPauses is takeAndSettle, but waits until the ledger has no pause, for as long as the wait
// allows.
func (w *waiter) takeAfterPauses(ctx context.Context) (*Held, error) {
	for {
		held, err := w.takeAndSettle(ctx)
		paused := (*ledger.PausedError)(nil)
		if !errors.As(err, &paused) || w.candidate.left() <= 0 {
			return held, err
		}
		w.returning = w.returning || w.knowledge.listens()
		if err := w.waitForResume(ctx, paused); err != nil {
			return nil, err
		}
		w.resumed()
	}
}

// takeAndSettle takes the lock and prepares the start. The holder then looks for requests to step
// down, and calls those in line when it is done.
func (w *waiter) takeAndSettle(ctx context.Context) (*Held, error) {
	if err := w.take(ctx); err != nil {
		return nil, err
	}
	w.candidate.answered()
	held, err := w.Settle(ctx)
	if err != nil {
		return nil, err
	}
	held.next = w.succession()
	held.heedRequests()
	return held, nil
}

// take takes the lock: it tries first, and then waits for as long as it may. A returning waiter has
// a place in line, and tries only when it is its turn. In a transaction there is no line.
func (w *waiter) take(ctx context.Context) error {
	triesFirst, wait := !w.returning, w.wait
	if !w.cfg.hasLine() {
		triesFirst, wait = true, w.poll
	}
	if triesFirst {
		if _, err := w.Try(ctx); err != nil || w.Complete() {
			return err
		}
	}
	switch {
	case w.candidate.left() > 0:
	case triesFirst:
		return w.refuse(ctx)
	default:
		return w.lastTry(ctx)
	}
	w.candidate.answered()
	if err := w.beginWait(); err != nil {
		return err
	}
	defer w.cfg.Observer.beside(ctx, w.s)()
	for w.candidate.left() > 0 {
		granted, err := wait(ctx)
		if err == nil && granted && !w.Complete() {
			_, err = w.Try(ctx) // the rest of several locks
		}
		if err != nil || w.Complete() {
			return err
		}
		w.candidate.answered()
	}
	return w.lastTry(ctx)
}

// lastTry tries once more when the time is up, then gives up.
func (w *waiter) lastTry(ctx context.Context) error {
	if _, err := w.Try(ctx); err != nil || w.Complete() {
		return err
	}
	return w.refuse(ctx)
}

// beginWait prepares for a wait.
func (w *waiter) beginWait() error {
	w.cfg.Log.Info("waiting for the lock", "event", "waiting")
	if w.cfg.hasLine() {
		w.beatPlainly()
		w.s.StartHeartbeat()
	}
	return w.preparation.done()
}

// poll waits where there is no line: in a transaction.
func (w *waiter) poll(ctx context.Context) (granted bool, err error) {
	if _, err := w.s.Second(ctx); err != nil { // see session.Open
		return false, err
	}
	for polls := crowd.PollBackoff(); w.candidate.left() > 0; {
		if err := w.report(ctx); err != nil {
			return false, err
		}
		if !pace.Sleep(ctx, min(pace.Between(crowd.PollBounds(polls)), w.candidate.left())) {
			return false, context.Cause(ctx)
		}
		if granted, err := w.Try(ctx); err != nil || granted {
			return granted, err
		}
	}
	return false, nil
}

// refuse gives up. Its error names the holders of the locks that are missing.
func (w *waiter) refuse(ctx context.Context) error {
	if err := w.withdraw(ctx); err != nil {
		return err
	}
	conflict := &ConflictError{Database: session.Target(w.cfg.Session.Database), Waited: w.cfg.Wait}
	if !w.cfg.Explain {
		return conflict
	}
	sought := w.cfg.Claim.Sought()
	views, err := inspect.Holders(ctx, lastQuery{w.s}, sought.Locks...)
	if err != nil {
		return conflict // without their names
	}
	for _, view := range views {
		if view.Backend != w.s.BackendPID() && (!w.cfg.Claim.takesAny() || view.ID != *w.cfg.Claim.Gate) {
			conflict.Holders = append(conflict.Holders, view)
		}
	}
	return conflict
}

// lastQuery is a session that ends with the answer to its next query.
type lastQuery struct{ *session.Session }

func (l lastQuery) Query(ctx context.Context, queries ...string) (session.Rows, error) {
	answers, err := l.Ask(ctx, session.Request{SQL: queries, Last: true})
	return slices.Concat(answers...), err
}
