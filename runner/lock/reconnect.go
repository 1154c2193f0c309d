package lock

import (
	"errors"
	"time"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// reconnects are the pauses between attempts to connect. Each is a random part of a backoff that
// doubles, so that the waiters don't overrun a server that comes up again. The first in line, on
// which the next command depends, pause for frontAgain at most, but only for the time frontFor. If
// a server answers with an error, such as that it isn't ready, they use front, which doubles, too:
// each such attempt leaves a line in that server's log.
type reconnects struct {
	backoff, front *pace.Backoff
	since          time.Time     // when the last session was lost, or the attempts began
	crowded        *pace.Backoff // for a server that has no room
	said           string        // the reason that was logged last
}

const (
	backoffFirst = 200 * time.Millisecond
	backoffMost  = 5 * time.Second
	frontAgain   = 250 * time.Millisecond
	frontFor     = time.Minute
)

func frontBackoff() *pace.Backoff { return pace.Doubling(50*time.Millisecond, backoffMost) }

func newReconnects() *reconnects {
	p := &reconnects{crowded: crowd.CrowdedBackoff()}
	p.restart()
	return p
}

func (p *reconnects) restart() {
	p.since, p.backoff = time.Now(), pace.Doubling(backoffFirst, backoffMost)
	p.front = frontBackoff()
}

// next is the pause after an attempt that has failed. rank is Candidate.rank.
func (p *reconnects) next(rank int, err error) time.Duration {
	if errors.As(err, new(*session.LostError)) {
		p.restart()
	}
	atFront := rank > 0 && rank <= crowd.MostWatchers
	var e *session.Error
	switch {
	case atFront && (errors.As(err, &e) && e.LoginRejected || answeredError(err) != nil):
		return p.front.Half()
	case !atFront || time.Since(p.since) > frontFor:
		return p.backoff.Half()
	}
	p.front = frontBackoff()
	return pace.Between(frontAgain/2, frontAgain)
}
