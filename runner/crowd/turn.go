package crowd

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
)

// Turn is a waiter's rank, by its latest look and by what it has heard since, and the times at
// which it looks and tries next. The waiter tells it what happens:
//
//	event                                     what follows                                     by
//	a look                                    the next look after nextLook                     Looked
//	a look shows no holder                    rank 1 tries at once; if others know more of     Looked
//	                                          the last holder, after TurnPatience; not with a
//	                                          gate
//	a second look in a row shows none         ranks 1 to triesWhatsFree try at once            Looked
//	a watch begins                            the next look after some leases                  WatchBegins
//	a look shows no token, but a new request  the next look soon                               LookAt
//	nobody watches, nor is about to try       rank 1 tries after tryEvery                      TryLater
//	started is heard                          no try; the first few look after lookAtNew       HeardStart
//	started is heard from a stranger          ranks 1 to triesWhatsFree look within            HeardStart
//	                                          lookAtOnce, and try as before
//	clean, dead or left is heard              a try after delay: a burst, if this waiter has   HeardEnd
//	                                          rank 1, or is named
//	a call                                    a look at once                                   LookAt
//	the watch: the holder is silent, or       a look at once                                   WatchEnds
//	does something else
//	the watch: the lock is free               a look at once; rank 1 tries at once, unless     WatchEnds
//	                                          its turn is near
//	this waiter ends a silent session         the same as an end that names it: a burst        Freed
//	a try                                     no other try is planned                          TakeTry
//	a try is refused                          a look at once after a burst, or if no known     LookAt
//	                                          holder explains it
//	the waiter becomes dormant                no try                                           DropTry
type Turn struct {
	Own   uint32        // the waiter's session
	Lease time.Duration // the waiter's

	Rank  int
	ahead []uint32 // the sessions before this one, the next first

	lookAt   time.Time // the next look
	lookedAt time.Time
	moving   bool      // the latest look showed that the line moves
	tryAt    time.Time // zero: no try is planned
	burst    bool      // the planned try is a burst
	unheld   int       // how many looks in a row have shown no holder
}

// Next is the time of the next look or try.
func (t *Turn) Next() time.Time {
	if t.TriesBy(t.lookAt) {
		return t.tryAt
	}
	return t.lookAt
}

// TriesBy says whether a try is planned for that time or before.
func (t *Turn) TriesBy(at time.Time) bool { return !t.tryAt.IsZero() && !at.Before(t.tryAt) }

// LookAt plans the next look for that time.
func (t *Turn) LookAt(at time.Time) { t.lookAt = at }

// LooksBy says whether a look is planned for that time or before.
func (t *Turn) LooksBy(at time.Time) bool { return !at.Before(t.lookAt) }

// TakeTry forgets the planned try, and says whether that try was to be a burst.
func (t *Turn) TakeTry() (burst bool) {
	burst = t.burst
	t.DropTry()
	return burst
}

// DropTry forgets the planned try.
func (t *Turn) DropTry() { t.tryAt, t.burst = time.Time{}, false }

const (
	// triesWhatsFree is the last rank that tries a lock which two looks have shown to be free.
	triesWhatsFree = 3
	// tryEvery is how often the first in line tries if the holder shows nothing of itself: the lock
	// may come free without a word.
	tryEvery = time.Second
	// lookAtNew is how soon the waiters that are to watch a new holder look at it: just after its
	// first heartbeat, since its silence counts from then. Brief commands are over by that time.
	lookAtNew = FirstBeat + LookAfter
	// lookAtOnce is how soon the first in line look when a stranger announces a start. That doesn't
	// cancel their try.
	lookAtOnce = 2 * time.Millisecond
)

// Situation is what a look has shown of the waiter and its lock.
type Situation struct {
	Rank      int
	Ahead     []uint32 // the sessions before this one, the next first
	Held      bool     // somebody has one of the locks
	Free      bool     // nobody has the one lock that is wanted
	KnowsLess bool     // others in line may know more of the lock's last holder
}

// Looked notes what a look has shown, and decides when to look again, and whether to try.
func (t *Turn) Looked(now time.Time, s Situation) {
	p := progress{moved: max(0, t.Rank-s.Rank), moving: t.moving}
	if !t.lookedAt.IsZero() {
		p.in = now.Sub(t.lookedAt)
	}
	t.Rank, t.ahead = s.Rank, s.Ahead
	t.unheld++
	if s.Held {
		t.unheld = 0
	}
	t.lookedAt, t.moving = now, p.moved > 0
	t.lookAt = now.Add(nextLook(t.Rank, p, t.Lease))
	if t.Rank <= triesWhatsFree && t.unheld >= 2 {
		t.tryAt = now
	}
	if t.Rank <= 1 && t.tryAt.IsZero() && s.Free {
		t.tryAt = now
		if s.KnowsLess {
			t.tryAt = now.Add(TurnPatience)
		}
	}
}

// progress is what two looks show of a dormant waiter's way to the listeners.
type progress struct {
	moved  int           // places, from one look to the other
	in     time.Duration // time from one look to the other; 0: there was only one
	moving bool          // the look before these two showed that the line moved, too
}

// nextLook is the time from a look to the next one. A look takes the server 0.3 ms with 200
// sessions. So a dormant waiter goes half of the way to the listeners, at the line's pace, before
// it looks again. The pace is unknown if the line stood before: it may have begun to move just now.
func nextLook(rank int, p progress, lease time.Duration) time.Duration {
	const least, each = 100 * time.Millisecond, 5 * time.Millisecond
	seldom := max(leasetime.BeatEvery(lease), time.Duration(rank)*time.Second/4)
	behind := time.Duration(rank - MostListeners)
	switch {
	case behind <= 0:
		return seldom
	case p.moved > 0 && p.moving: // a call would be heard in a heartbeat's time
		return min(max(least, behind*p.in/time.Duration(p.moved)/2), leasetime.WaiterBeat(lease))
	case p.moved > 0, p.in == 0:
		return max(least, behind*each)
	}
	return min(max(least, 2*p.in), seldom)
}

// TryLater makes the first in line try in a while anyway, unless the heartbeat watches.
func (t *Turn) TryLater(now time.Time, watches bool) {
	if t.Rank == 1 && t.tryAt.IsZero() && !watches {
		t.tryAt = now.Add(tryEvery)
	}
}

// HeardStart notes that a session has announced a start. trusted says whether its words count, and
// watches whether the heartbeat watches the holder. A stranger's word doesn't cancel the try of
// those that look at once.
func (t *Turn) HeardStart(now time.Time, by uint32, trusted, watches bool) {
	t.unheld = 0
	if t.Rank > triesWhatsFree || trusted {
		t.DropTry()
	}
	if i := slices.Index(t.ahead, by); i >= 0 {
		t.ahead = slices.Delete(t.ahead, i, i+1)
		t.Rank = max(1, t.Rank-1)
	}
	if t.Rank <= triesWhatsFree && !trusted && now.Add(lookAtOnce).Before(t.lookAt) {
		t.lookAt = now.Add(rand.N(lookAtOnce))
	}
	if soon := now.Add(lookAtNew); t.Rank <= MostWatchers && soon.Before(t.lookAt) {
		t.lookAt = soon
	}
	t.TryLater(now, watches)
}

// HeardEnd notes that a session has announced an end, and named the session to, or none. A repeated
// announcement must not delay a turn that is near.
func (t *Turn) HeardEnd(now time.Time, to uint32) {
	if at := now.Add(t.delay(to)); t.tryAt.IsZero() || at.Before(t.tryAt) {
		t.tryAt = at
	}
	t.burst = t.burst || t.Rank == 1 || to == t.Own
}

// Freed notes that this waiter has ended the holder's session, which frees the lock.
func (t *Turn) Freed(now time.Time) { t.HeardEnd(now, t.Own) }

// delay is how long the lock is left to those before this session after an announced end. The end
// may name another session although none is known to be before this one.
func (t *Turn) delay(to uint32) time.Duration {
	switch {
	case to == t.Own:
		return 0
	case t.Rank == 1 && to != 0 && len(t.ahead) == 0:
		return TurnPatience
	}
	return TurnPatience * time.Duration(max(0, t.Rank-1))
}

// WatchBegins notes that the heartbeat watches the holder from now on. The first in line looks less
// often then: the others also find out with a look whether they have to give back their
// connections, and the first never does.
func (t *Turn) WatchBegins(now time.Time) {
	leases := 2 * t.Lease
	if t.Rank == 1 {
		leases = 4 * t.Lease
	}
	t.lookAt = now.Add(leases)
}

// WatchEnds makes it time for a look and, if the lock is free and the very first in line was to
// make a try, for that. A turn that is near stays as it is: a holder may have named another
// session, which should take the free lock first.
func (t *Turn) WatchEnds(now time.Time, free bool) {
	t.lookAt = now
	if free && t.Rank == 1 && (t.tryAt.IsZero() || t.tryAt.Sub(now) > TurnPatience) {
		t.tryAt = now
	}
}
