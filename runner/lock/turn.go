package lock

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/lock/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// This table says when a waiter in line tries, and when it looks. waiter.act does so at tryAt and
// lookAt, which these events set:
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
//	a try is refused                          a look at once after a burst, or if no known     takeTurn
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
// before. A stranger's announcement of a start makes them do only that.
const lookAtOnce = 2 * time.Millisecond

// namedAfter is how soon a holder that shows no token is looked at again. It may be about to
// draw a token, and the announcement of its death names that token.
const namedAfter = 20 * time.Millisecond

// plan decides after a look when to look again, and whether to try.
func (w *waiter) plan(found *look, moved int) {
	now := time.Now()
	progress := crowd.Progress{Moved: moved, Moving: w.schedule.moving}
	if !w.schedule.lookedAt.IsZero() {
		progress.In = now.Sub(w.schedule.lookedAt)
	}
	w.schedule.lookedAt, w.schedule.moving = now, moved > 0
	w.schedule.lookAt = now.Add(crowd.NextLook(found.rank, progress, w.cfg.Session.Lease))
	if w.rank <= crowd.TriesWhatsFree && w.schedule.unheld >= 2 {
		w.schedule.tryAt = now
	}
	if w.rank <= 1 && w.schedule.tryAt.IsZero() && !w.cfg.Claim.takesAny() && !found.holds(w.place.line) {
		w.schedule.tryAt = now
		if w.knowsLess(found) {
			w.schedule.tryAt = now.Add(crowd.TurnPatience)
		}
	}
}

// knowsLess says whether others in line may know more of the last holder than this waiter, which
// may have just come back to its place and heard nothing. It would have to hold the lock for a
// delay, while one of them, whom the holder may have named, can start at once.
func (w *waiter) knowsLess(found *look) bool {
	listening := found.marked
	if w.place.held[markLock] {
		listening--
	}
	h := w.knowledge.heard[w.place.line]
	return listening > 0 && (h == nil || h.Verdict().Delay > 0)
}

// tryLater makes the first in line try in a while anyway, unless the heartbeat watches.
func (w *waiter) tryLater() {
	if w.rank == 1 && w.schedule.tryAt.IsZero() && w.watched.state() == off {
		w.schedule.tryAt = time.Now().Add(crowd.TryEvery)
	}
}

// decide decides from what was heard when to try, and when to look.
func (w *waiter) decide(events []evidence.Announcement) {
	now := time.Now()
	for _, e := range events {
		switch e.Word {
		case evidence.Started:
			w.schedule.burst, w.schedule.unheld = false, 0
			// A stranger's word doesn't cancel the try of those that look at once.
			if w.rank > crowd.TriesWhatsFree || w.knowledge.trusts(e.PID) {
				w.schedule.tryAt = time.Time{}
			}
			if i := slices.Index(w.ahead, e.PID); i >= 0 {
				w.ahead = slices.Delete(w.ahead, i, i+1)
				w.rank = max(1, w.rank-1)
			}
			if w.rank <= crowd.TriesWhatsFree && !w.knowledge.trusts(e.PID) && now.Add(lookAtOnce).Before(w.schedule.lookAt) {
				w.schedule.lookAt = now.Add(rand.N(lookAtOnce))
			}
			if soon := now.Add(crowd.LookAtNew); w.rank <= crowd.MostWatchers && soon.Before(w.schedule.lookAt) {
				w.schedule.lookAt = soon
			}
			w.tryLater()
		case evidence.Clean, evidence.Dead, evidence.Left:
			// A repeated announcement must not delay a turn that is near.
			if at := now.Add(w.turnDelay(e)); w.schedule.tryAt.IsZero() || at.Before(w.schedule.tryAt) {
				w.schedule.tryAt = at
			}
			w.schedule.burst = w.schedule.burst || w.rank == 1 || e.To == w.s.BackendPID()
		}
	}
}

// turnDelay is how long the lock is left to those before this session after an announced end.
func (w *waiter) turnDelay(e evidence.Announcement) time.Duration {
	if e.To == w.s.BackendPID() {
		return 0
	}
	return crowd.TurnDelay(w.rank, e.To != 0 && len(w.ahead) == 0)
}

// lookOrTry makes it time for a look and, if the very first in line was to make a try, for that.
// A turn that is near stays as it is: a holder may have named another session, which should
// take the free lock first.
func (w *waiter) lookOrTry(state watchState, now time.Time) {
	w.schedule.lookAt = now
	if state == shouldTry && w.rank == 1 && (w.schedule.tryAt.IsZero() || w.schedule.tryAt.Sub(now) > crowd.TurnPatience) {
		w.schedule.tryAt = now
	}
}
