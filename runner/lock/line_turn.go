package lock

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/lock/evidence"
)

// This table says when a waiter in line tries, and when it looks. standInLine does so at tryAt and
// lookAt, which these events set:
//
//	event                                     what follows                                     in
//	a look                                    the next look after NextLook                     plan
//	a look shows no holder                    the first tries at once; if others know more of  plan
//	                                          the last holder, after TurnPatience; not with a
//	                                          gate
//	a second look in a row shows none         ranks 1 to TriesWhatsFree try at once            plan
//	a watch begins                            the next look after LookBesideWatch              startWatch
//	a look shows no token, but a new request  the next look after namedAfter                   watchHolder
//	nobody watches, nor is about to try       the first tries after TryEvery                   tryLater
//	started is heard                          no try; the first few look after LookAtNew       decide
//	started is heard from a stranger          ranks 1 to TriesWhatsFree look within            decide
//	                                          lookAtOnce, and try as before
//	clean, dead or left is heard              a try after delay: a burst, if this waiter       decide
//	                                          is the first, or is named
//	a call                                    a look at once                                   standInLine
//	the watch: the holder is silent, or       a look at once                                   lookOrTry
//	does something else
//	the watch: the lock is free               a look at once; the first tries at once, unless  lookOrTry
//	                                          its turn is near
//	a silent session is ended                 a burst at once                                  endSilent
//	a try is refused                          a look at once after a burst, or if no known     tryNow
//	                                          holder explains it
//	the waiter becomes dormant                no try                                           goDormant

// turn is a waiter's rank, by its latest look and by what it has heard since, and the times at
// which it looks and tries next. It asks the server nothing.
type turn struct {
	own   uint32        // the waiter's session
	lease time.Duration // the waiter's

	rank  int
	ahead []uint32 // the sessions before this one, the next first

	lookedAt, lookAt time.Time
	moving           bool      // the latest look showed that the line moves
	tryAt            time.Time // zero: no try is planned
	burst            bool      // the planned try is a burst
	unheld           int       // how many looks in a row have shown no holder
}

// next is the time of the next look or try.
func (t *turn) next() time.Time {
	if t.triesBy(t.lookAt) {
		return t.tryAt
	}
	return t.lookAt
}

// triesBy says whether a try is planned for that time or before.
func (t *turn) triesBy(at time.Time) bool { return !t.tryAt.IsZero() && !at.Before(t.tryAt) }

// clearTry forgets the planned try, and says whether that try was to be a burst.
func (t *turn) clearTry() (burst bool) {
	burst = t.burst
	t.tryAt, t.burst = time.Time{}, false
	return burst
}

// lookAtOnce is how soon the first in line look when a stranger announces a start. That doesn't
// cancel their try.
const lookAtOnce = 2 * time.Millisecond

// namedAfter is how soon a holder that shows no token is looked at again. It may be about to draw
// one, which the announcement of its death will name.
const namedAfter = 20 * time.Millisecond

// plan notes what a look has shown, and decides when to look again, and whether to try. free says
// that nobody has the one lock that is wanted; knowsLess says that others in line may know more of
// the lock's last holder.
func (t *turn) plan(found *evidence.Look, free, knowsLess bool) {
	now := time.Now()
	progress := crowd.Progress{Moved: max(0, t.rank-found.Rank), Moving: t.moving}
	if !t.lookedAt.IsZero() {
		progress.In = now.Sub(t.lookedAt)
	}
	t.notePlace(found)
	t.lookedAt, t.moving = now, progress.Moved > 0
	t.lookAt = now.Add(crowd.NextLook(t.rank, progress, t.lease))
	if t.rank <= crowd.TriesWhatsFree && t.unheld >= 2 {
		t.tryAt = now
	}
	if t.rank <= 1 && t.tryAt.IsZero() && free {
		t.tryAt = now
		if knowsLess {
			t.tryAt = now.Add(crowd.TurnPatience)
		}
	}
}

// notePlace notes the place in line, and whether a look has shown a holder.
func (t *turn) notePlace(found *evidence.Look) {
	t.rank, t.ahead = found.Rank, nil
	for _, s := range found.Line {
		if s.PID == t.own {
			break
		}
		t.ahead = append(t.ahead, s.PID)
	}
	t.unheld++
	if len(found.Holders) > 0 {
		t.unheld = 0
	}
}

// tryLater makes the first in line try in a while anyway, unless the heartbeat watches.
func (t *turn) tryLater(watches bool) {
	if t.rank == 1 && t.tryAt.IsZero() && !watches {
		t.tryAt = time.Now().Add(crowd.TryEvery)
	}
}

// decide decides from what was heard when to try, and when to look. trusts says whether a session's
// words count, and watches whether the heartbeat watches the holder.
func (t *turn) decide(heard []evidence.Announcement, trusts func(pid uint32) bool, watches bool) {
	now := time.Now()
	for _, a := range heard {
		switch a.Word {
		case evidence.Started:
			t.burst, t.unheld = false, 0
			// A stranger's word doesn't cancel the try of those that look at once.
			if t.rank > crowd.TriesWhatsFree || trusts(a.PID) {
				t.tryAt = time.Time{}
			}
			if i := slices.Index(t.ahead, a.PID); i >= 0 {
				t.ahead = slices.Delete(t.ahead, i, i+1)
				t.rank = max(1, t.rank-1)
			}
			if t.rank <= crowd.TriesWhatsFree && !trusts(a.PID) && now.Add(lookAtOnce).Before(t.lookAt) {
				t.lookAt = now.Add(rand.N(lookAtOnce))
			}
			if soon := now.Add(crowd.LookAtNew); t.rank <= crowd.MostWatchers && soon.Before(t.lookAt) {
				t.lookAt = soon
			}
			t.tryLater(watches)
		case evidence.Clean, evidence.Dead, evidence.Left:
			// A repeated announcement must not delay a turn that is near.
			if at := now.Add(t.delay(a)); t.tryAt.IsZero() || at.Before(t.tryAt) {
				t.tryAt = at
			}
			t.burst = t.burst || t.rank == 1 || a.To == t.own
		}
	}
}

// delay is how long the lock is left to those before this session after an announced end.
func (t *turn) delay(a evidence.Announcement) time.Duration {
	if a.To == t.own {
		return 0
	}
	return crowd.TurnDelay(t.rank, a.To != 0 && len(t.ahead) == 0)
}

// lookOrTry makes it time for a look and, if the very first in line was to make a try, for that.
// A turn that is near stays as it is: a holder may have named another session, which should
// take the free lock first.
func (t *turn) lookOrTry(state watchState, now time.Time) {
	t.lookAt = now
	if state == shouldTry && t.rank == 1 && (t.tryAt.IsZero() || t.tryAt.Sub(now) > crowd.TurnPatience) {
		t.tryAt = now
	}
}
