package lock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// waiter is a candidate's bid, which waits in line for what the first try did not get.
type waiter struct {
	*bid
	candidate *Candidate
	told      time.Time // when Observer.Waiting was last called

	turn    crowd.Turn
	watched watch // of the holder

	called atomic.Bool     // a call was heard, and no look has followed yet
	limits *inspect.Limits // on the server's connections, once they are known
}

// mostHeard bounds the announcements on which a waiter has not acted yet.
const mostHeard = 256

// newWaiter returns the candidate's waiter on a session. Others may have had the locks since the
// candidate's last session, if it had one.
func (c *Candidate) newWaiter(s *session.Session, prepare Prepare) *waiter {
	w := &waiter{
		bid: newBid(newListener(s, &c.cfg, c.wait.returning), c.cfg, prepare), candidate: c,
		turn: crowd.Turn{Own: s.BackendPID(), Lease: c.cfg.Session.Lease},
	}
	w.listener.heard = make(chan evidence.Announcement, mostHeard)
	w.place.ticket, w.listener.unended = c.wait.former.ticket, c.wait.unended
	return w
}

// acquire takes the lock and prepares the start, again after each pause in the ledger until the
// wait is over. The holder then looks for requests to step down, and calls those in line when it is
// done.
func (w *waiter) acquire(ctx context.Context) (*Held, error) {
	for {
		if err := w.take(ctx); err != nil {
			return nil, err
		}
		w.candidate.noteAnswer()
		held, err := w.settle(ctx)
		if err == nil {
			w.Session.DropSecond() // a list keeps its own, which draws the next item's token
			held.toCall = w.whomToCall()
			held.checkForStepDown()
			return held, nil
		}
		paused := (*ledger.PausedError)(nil)
		if !errors.As(err, &paused) || w.candidate.timeLeft() <= 0 {
			return nil, err
		}
		if err := w.waitForResume(ctx, paused); err != nil {
			return nil, err
		}
	}
}

// take takes the lock: it tries, waits for as long as Config.Wait allows, and then tries once more.
// A waiter that comes back, after a loss, or after a pause before which it had waited, must not pass
// those in line: it makes no try before its turn comes, or the time is up. Where nothing is
// announced there is no line.
func (w *waiter) take(ctx context.Context) error {
	mayTry := w.listener.evidence.Untouched() || !w.cfg.announces()
	if mayTry {
		if _, err := w.try(ctx); err != nil || w.complete() {
			return err
		}
	}
	mayWait := w.candidate.timeLeft() > 0
	if mayWait {
		if err := w.awaitGrant(ctx); err != nil || w.complete() {
			return err
		}
	}
	if mayWait || !mayTry {
		if _, err := w.try(ctx); err != nil || w.complete() {
			return err
		}
	}
	return w.refuse(ctx)
}

// awaitGrant waits until all that the claim asks for is granted, or the time is up: by polling or
// in line, in that of one lock after the other.
func (w *waiter) awaitGrant(ctx context.Context) error {
	w.candidate.noteAnswer()
	w.cfg.Log.Info("waiting for the lock", "event", "waiting")
	step := w.poll
	if w.cfg.announces() {
		step = w.standInLine
		w.beatPlainly()
		w.Session.StartHeartbeat()
	}
	if err := w.preparation.await(); err != nil {
		return err
	}
	defer w.cfg.Observer.beside(ctx, w.Session)()
	for w.candidate.timeLeft() > 0 && !w.complete() {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// standInLine is the loop in line: it waits for news or the next due time, decides, tries and
// looks, until something is granted or the time is up.
func (w *waiter) standInLine(ctx context.Context) error {
	if err := w.join(ctx); err != nil {
		return err
	}
	defer w.unwatch()
	if err := w.tellObserver(ctx); err != nil {
		return err
	}
	for {
		rest := w.candidate.timeLeft()
		if rest <= 0 {
			return nil
		}
		rest = max(0, min(rest, time.Until(w.turn.Next()), w.untilTold()))
		w.cfg.SayTrying(rest) // the next look may be minutes away in a long line
		if err := w.sleep(ctx, rest, w.listener.news); err != nil {
			return err
		}
		if w.called.Swap(false) {
			w.turn.LookAt(time.Now())
		}
		w.actOnHeard()
		w.actOnWatch()
		now := time.Now()
		if err := w.listener.askRoles(ctx); err != nil {
			return err
		}
		if w.turn.TriesBy(now) {
			if granted, err := w.tryNow(ctx); err != nil || granted {
				return err
			}
		}
		if w.turn.LooksBy(now) {
			if err := w.lookAgain(ctx); err != nil {
				return err
			}
		}
		if err := w.tellObserver(ctx); err != nil {
			return err
		}
	}
}

// actOnHeard acts on the announcements that have come for the locks to which this line leads.
func (w *waiter) actOnHeard() {
	for range len(w.listener.heard) {
		switch a := <-w.listener.heard; {
		case w.cfg.Claim.lineFor(a.Lock) != w.place.line:
		case a.Word == evidence.Started:
			w.turn.HeardStart(time.Now(), a.PID, w.listener.evidence.Trusts(a.PID), w.watches())
		case a.Word == evidence.Clean, a.Word == evidence.Dead, a.Word == evidence.Left:
			w.turn.HeardEnd(time.Now(), a.To)
		}
	}
}

// sleep returns when the time d has passed, or news has come. The loss of the session, or the end
// of ctx, is an error.
func (w *waiter) sleep(ctx context.Context, d time.Duration, news <-chan struct{}) error {
	select {
	case <-time.After(max(0, d)):
	case <-news:
	case <-w.Session.Done():
		return w.Session.EndError()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// tryNow tries once, or many times if the lock is about to be freed.
func (w *waiter) tryNow(ctx context.Context) (granted bool, err error) {
	try, burst := w.try, w.turn.TakeTry()
	if burst {
		try = w.tryInBurst
	}
	w.tryLater()
	granted, err = try(ctx)
	if err == nil && !granted && (burst || w.listener.unknownHolder) {
		w.turn.LookAt(time.Now())
	}
	return granted, err
}

// burstTries is how many tries one statement makes: the first at once, the next burstFast of them
// at intervals of 1 ms, and the rest at intervals of 6 ms. A holder announces its clean end before
// it frees the lock, so a single try would come too early.
const (
	burstTries = 50
	burstFast  = 20
)

// tryInBurst tries many times in one statement. If there is nothing to wait for, or the ledger says
// what there is, the draw travels along. Without the lock it draws nothing.
func (w *waiter) tryInBurst(ctx context.Context) (granted bool, err error) {
	locks, queries := w.cfg.Claim.locks(), []string{w.burstQuery(0)}
	starts := w.drawStartsRun(locks) // another start may be heard meanwhile
	draws := w.cfg.drawsWithTry() && (w.startsAtOnce(locks) || starts)
	if draws {
		queries = append(queries, w.drawQuery(locks, w.leaveSQL()...))
	}
	later, cancel := untilAnswered(ctx)
	defer cancel()
	answers, err := w.Session.Ask(later, session.Request{SQL: queries})
	if err != nil {
		// If the ledger failed, settle finds out more.
		if !draws || !starts || session.AnsweredError(err) == nil || len(answers[0]) == 0 {
			return false, w.cfg.Claim.rejected(err)
		}
		draws = false
	}
	if len(answers[0]) == 0 {
		err := w.listener.askRoles(ctx) // another session may have had the lock meanwhile, and announced its start and end
		return w.addGrants(nil), err
	}
	row, err := answers[0].Only(1)
	if err != nil {
		return false, err
	}
	won, err := w.readTry(row[0])
	if err != nil {
		return false, err
	}
	granted = w.addGrants(won)
	if draws {
		w.forgetPlace()
		err = w.noteDrawn(answers[1])
	}
	return granted, err
}

// burstQuery is the query that makes the tries from number first on, until one gets something or
// the burst is over.
func (w *waiter) burstQuery(first int) string {
	return fmt.Sprintf(`SELECT won FROM (
	SELECT CASE WHEN i = 0 OR pg_catalog.pg_sleep(CASE WHEN i <= %d THEN 0.001 ELSE 0.006 END) IS NOT NULL THEN %s END AS won
	FROM pg_catalog.generate_series(%d, %d) AS i) AS t WHERE won > 0 LIMIT 1`, burstFast, w.trySQL(), first, burstTries-1)
}

// poll waits where there is no line: in a transaction.
func (w *waiter) poll(ctx context.Context) error {
	if _, err := w.Session.Second(ctx); err != nil { // it is open before the lock is free: see session.Open
		return err
	}
	for polls := crowd.PollBackoff(); w.candidate.timeLeft() > 0; {
		if err := w.tellObserver(ctx); err != nil {
			return err
		}
		if !pace.Sleep(ctx, min(pace.Between(crowd.NextPoll(polls)), w.candidate.timeLeft())) {
			return context.Cause(ctx)
		}
		if granted, err := w.try(ctx); err != nil || granted {
			return err
		}
	}
	return nil
}

// refuse gives up. Its error names the holders of the locks, which takes one more question to the
// server. If the log has no warnings, as with -q, nobody would read the names.
func (w *waiter) refuse(ctx context.Context) error {
	if err := w.giveBackAndLeave(ctx); err != nil {
		return err
	}
	conflict := &ConflictError{Database: session.Target(w.cfg.Session.Database), Waited: w.cfg.Wait}
	if !w.cfg.Log.Enabled(ctx, slog.LevelWarn) {
		return conflict
	}
	views, err := inspect.Holders(ctx, lastQuery{w.Session}, w.cfg.Claim.IDs...)
	if err != nil {
		return conflict // without their names
	}
	for _, view := range views {
		if view.Backend != w.Session.BackendPID() && slices.Contains(w.cfg.Claim.IDs, view.ID) {
			conflict.Holders = append(conflict.Holders, view)
		}
	}
	return conflict
}

// lastQuery is a session that ends with the answer to its next query, if Request.Last lets it.
type lastQuery struct{ *session.Session }

func (l lastQuery) Query(ctx context.Context, queries ...string) (session.Rows, error) {
	answers, err := l.Ask(ctx, session.Request{SQL: queries, Last: true})
	return slices.Concat(answers...), err
}

// ConflictError says that somebody else has the lock.
type ConflictError struct {
	Database string
	Waited   time.Duration
	Holders  []inspect.View // as far as they are known
}

func (e *ConflictError) Error() string {
	text := fmt.Sprintf("the lock in %s is held elsewhere", e.Database)
	if e.Waited > 0 {
		text = fmt.Sprintf("the lock in %s was held elsewhere for all of the %s that --wait allows", e.Database, visible.Duration(e.Waited))
	}
	const most = 3
	for i, holder := range e.Holders {
		if i == most {
			return fmt.Sprintf("%s, and %d more", text, len(e.Holders)-most)
		}
		if i == 0 {
			text += ": by "
		} else {
			text += "; by "
		}
		text += holder.String()
	}
	return text
}
