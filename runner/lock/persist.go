package lock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglead/pglead/runner/lock/advisory"
	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// When the session of a waiter is lost, this happens, in this order:
//
//	waiter.awaitNews   notices the loss; an answer that misses its deadline is one, too
//	Candidate.attempt  keeps the ticket and the rank, undoes the preparation, and closes the session
//	Candidate.outlast  pauses: the first in line briefly, the others longer and longer
//	Candidate.attempt  opens a session without a first try, which might pass those in line
//	waiter.join        ends the old session, if the server still has it; listens, takes its
//	                   old ticket and its mark, and looks
//	Bid.verdict        the waiter has lost what it had heard: if it hears nothing more, and there
//	                   is no ledger, a grant is held for the lock-delay

// outlast pauses after an attempt that failed for a reason that passes by itself: a session that
// was lost, or a server that restarts, has no room, or is a standby that may be promoted. A run
// that waits survives these. Otherwise, or when the time is up, outlast returns the error.
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
	waitsOut := session.Passing(err) || cfg.Endures && c.Reached()
	if !waitsOut || c.left() <= rest {
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

// pauses are the pauses between attempts to connect. Each is a random part of a backoff that
// doubles, so that the waiters don't overrun a server that comes up again. The first in line, on
// which the next command depends, pause for frontAgain at most, for as long as frontFor. If a
// server answers that it isn't ready, they use front, which doubles, too: each attempt is a line in
// that server's log.
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

// endGhostQuery is the query that ends the candidate's previous session, if the server still
// has it, as after a partition: that session would keep its place in line, and the lock, if that was
// granted to it last. It is identified by its number and its ticket.
func (w *waiter) endGhostQuery() (query []string) {
	c := w.candidate
	if c.ghost == 0 || w.cfg.Claim.shared() { // readers may share a ticket
		return nil
	}
	lines, _ := w.cfg.Claim.audience(w.cfg.Claim.Locks)
	return []string{fmt.Sprintf(`SELECT pg_catalog.pg_terminate_backend(pid, %d) FROM pg_catalog.pg_lock_status()
WHERE locktype = 'advisory' AND %s AND %s AND objid = '%d' AND %s AND granted AND pid = %d AND pid <> pg_catalog.pg_backend_pid()`,
		ghostMost.Milliseconds(), advisory.InThisDatabase, advisory.InLinesOf(lines...), c.ticket, advisory.IsTicket, c.ghost)}
}

// ghostMost is how long the server waits for a session that it was told to end.
const ghostMost = time.Second
