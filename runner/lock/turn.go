package lock

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// When a waiter in line tries, and when it looks. line.act does so at tryAt and lookAt, which
// these events move:
//
//	event                                     what follows                                     in
//	a look                                    the next look after NextLook                     plan
//	a look shows no holder                    the first tries at once; if others know more of  plan
//	                                          the last holder, after TurnPatience; not with a
//	                                          gate
//	a second look in a row shows none         ranks 1 to TriesWhatsFree try at once            plan
//	a watch begins                            the next look after LookBesideWatch              startWatch
//	the watched holder shows no token         the next look after namedAfter                   followHolder
//	nobody watches, nor is about to try       the first tries after TryEvery                   tryLater
//	started is heard                          no try; the first few look after LookAtNew       decide
//	started is heard from a stranger          ranks 1 to TriesWhatsFree look within            decide
//	                                          lookAtOnce, and try as before
//	clean, dead or left is heard              a try after turnDelay: a burst, if this waiter   decide
//	                                          is the first, or is named
//	a call                                    a look at once                                   wait
//	the watch: the holder is silent, or       a look at once                                   lookOrTry
//	does something else
//	the watch: the lock is free               a look at once; the first tries at once, unless  lookOrTry
//	                                          its turn is near
//	a silent session is ended                 a burst at once                                  endSilent
//	a try is refused                          a look at once after a burst, or if no known     try
//	                                          holder explains it
//	the waiter becomes dormant                no try                                           goDormant

// schedule is when a waiter looks and tries next.
type schedule struct {
	lookedAt, lookAt time.Time
	moving           bool      // the latest look showed that the line moves
	tryAt            time.Time // zero: it doesn't try
	burst            bool      // that try is of many
	unheld           int       // how many looks in a row have shown no holder
}

// next is when there is something to do.
func (s *schedule) next() time.Time {
	if s.triesBy(s.lookAt) {
		return s.tryAt
	}
	return s.lookAt
}

// triesBy says whether it tries at that time or before.
func (s *schedule) triesBy(t time.Time) bool { return !s.tryAt.IsZero() && !t.Before(s.tryAt) }

// lookAtOnce is how soon the first in line look at a holder that they have not seen
// before. A stranger's word of a start makes them do no more than that.
const lookAtOnce = 2 * time.Millisecond

// namedAfter is how soon a holder that shows no token is looked at again. It may be about to
// draw one, and the word of its death names that.
const namedAfter = 20 * time.Millisecond

// plan decides by a look when to look again, and whether to try.
func (l *line) plan(found *look, moved int) {
	now := time.Now()
	progress := crowd.Progress{Moved: moved, Moving: l.moving}
	if !l.lookedAt.IsZero() {
		progress.In = now.Sub(l.lookedAt)
	}
	l.lookedAt, l.moving = now, moved > 0
	l.lookAt = now.Add(crowd.NextLook(found.rank, progress, l.b.cfg.Session.Lease))
	if l.rank <= crowd.TriesWhatsFree && l.unheld >= 2 {
		l.tryAt = now
	}
	if l.rank <= 1 && l.tryAt.IsZero() && l.b.cfg.Claim.Gate == nil && !found.holds(l.of) {
		l.tryAt = now
		if l.knowsLess(found) {
			l.tryAt = now.Add(crowd.TurnPatience)
		}
	}
}

// knowsLess says whether others in line may know more of the last holder than this waiter, which
// has come back to its place, say, and heard nothing. It would have to hold the lock for a
// delay, and one of them, whom the holder may have named, can start at once.
func (l *line) knowsLess(found *look) bool {
	listening := found.marked
	if l.marked {
		listening--
	}
	h := l.b.heard[l.of]
	return listening > 0 && (h == nil || h.Verdict().Delay > 0)
}

// tryLater has the first in line try in a while anyway, unless the heartbeat watches.
func (l *line) tryLater() {
	if l.rank == 1 && l.tryAt.IsZero() && l.watched.state() == off {
		l.tryAt = time.Now().Add(crowd.TryEvery)
	}
}

// decide decides by what was heard when to try, and when to look.
func (l *line) decide(events []evidence.Announcement) {
	now := time.Now()
	for _, e := range events {
		switch e.Word {
		case evidence.Started:
			l.burst, l.unheld = false, 0
			// A stranger's word doesn't cancel the try of those that look at once.
			if l.rank > crowd.TriesWhatsFree || l.b.trusts(e.PID) {
				l.tryAt = time.Time{}
			}
			if i := slices.Index(l.ahead, e.PID); i >= 0 {
				l.ahead = slices.Delete(l.ahead, i, i+1)
				l.rank = max(1, l.rank-1)
			}
			if l.rank <= crowd.TriesWhatsFree && !l.b.trusts(e.PID) && now.Add(lookAtOnce).Before(l.lookAt) {
				l.lookAt = now.Add(rand.N(lookAtOnce))
			}
			if soon := now.Add(crowd.LookAtNew); l.rank <= crowd.MostWatchers && soon.Before(l.lookAt) {
				l.lookAt = soon
			}
			l.tryLater()
		case evidence.Clean, evidence.Dead, evidence.Left:
			// A repeated word must not put off a turn that is near.
			if at := now.Add(l.turnDelay(e)); l.tryAt.IsZero() || at.Before(l.tryAt) {
				l.tryAt = at
			}
			l.burst = l.burst || l.rank == 1 || e.To == l.b.s.BackendPID()
		}
	}
}

// turnDelay is how long the lock is left to those before this session, after a word of an end.
func (l *line) turnDelay(e evidence.Announcement) time.Duration {
	if e.To == l.b.s.BackendPID() {
		return 0
	}
	return crowd.TurnDelay(l.rank, e.To != 0 && len(l.ahead) == 0)
}

// lookOrTry makes it time for a look, and for a try if the very first in line was to make one.
// A turn that is near stays as it is: a holder may have named another session, which is to
// take the free lock before.
func (l *line) lookOrTry(state watchState, now time.Time) {
	l.lookAt = now
	if state == shouldTry && l.rank == 1 && (l.tryAt.IsZero() || l.tryAt.Sub(now) > crowd.TurnPatience) {
		l.tryAt = now
	}
}
