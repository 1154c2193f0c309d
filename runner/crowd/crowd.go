// Package crowd has the rules for a waiter among many, as far as they follow from numbers alone:
// who listens, who watches, and when each waiter looks, tries and stays away. Package lock applies
// them on a server. The simulation of crowds (runner/bench/scale) applies them in virtual time,
// with its own random source. So the functions return bounds, and the caller draws a random number
// between them. The rules are for speed, fairness and little load on the database: the promise does
// not depend on them.
package crowd

import (
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/pace"
)

const (
	// MostListeners is how many of the first in line listen. Each NOTIFY in the database wakes
	// all of them.
	MostListeners = 24
	// MostWatchers is how many of the first in line watch the holder.
	MostWatchers = 3
	// TriesWhatsFree is the last rank that tries a lock which two looks have shown to be free.
	TriesWhatsFree = 3

	// TryEvery is how often the first in line tries if the holder shows nothing of itself: the lock
	// may come free without a word.
	TryEvery = time.Second
	// TurnPatience is how long a waiter leaves a free lock to each of the waiters before it.
	TurnPatience = 300 * time.Millisecond
	// FirstBeat is the time from a grant to the holder's first heartbeat.
	FirstBeat = 500 * time.Millisecond
	// LookAtNew is how soon the waiters that are to watch a new holder look at it: just after its
	// first heartbeat, since its silence counts from then. Brief commands are over by that time.
	LookAtNew = FirstBeat + LookAfter
	// LookAfter is the time from when a holder's heartbeat is due to the look for it.
	LookAfter = 150 * time.Millisecond
	// CallEvery is how often a calling holder looks whether anybody listens.
	CallEvery = 20 * time.Millisecond
)

// HearCall is how often a dormant waiter asks whether somebody calls. A call lasts longer than
// that, and holds the lock without a command. So it asks at least every 5 s, however long the lease
// is.
func HearCall(lease time.Duration) time.Duration {
	const most = 5 * time.Second
	return min(leasetime.WaiterBeat(lease), most)
}

// Progress is what two looks show of a dormant waiter's way to the listeners.
type Progress struct {
	Moved  int           // places, from one look to the other
	In     time.Duration // time from one look to the other; 0: there was only one
	Moving bool          // the look before these two showed that the line moved, too
}

// NextLook is the time from a look to the next one. A look takes the server 0.3 ms with 200
// sessions. So a dormant waiter goes half of the way to the listeners, at the line's pace, before
// it looks again. The pace is unknown if the line stood before: it may have begun to move just now.
func NextLook(rank int, p Progress, lease time.Duration) time.Duration {
	const least, each = 100 * time.Millisecond, 5 * time.Millisecond
	seldom := max(leasetime.BeatEvery(lease), time.Duration(rank)*time.Second/4)
	behind := time.Duration(rank - MostListeners)
	switch {
	case behind <= 0:
		return seldom
	case p.Moved > 0 && p.Moving: // a call would be heard in a heartbeat's time
		return min(max(least, behind*p.In/time.Duration(p.Moved)/2), leasetime.WaiterBeat(lease))
	case p.Moved > 0, p.In == 0:
		return max(least, behind*each)
	}
	return min(max(least, 2*p.In), seldom)
}

// LookBesideWatch is the time from a look to the next one while the heartbeat watches the holder.
// The first in line looks less often: the others also find out with a look whether they have to
// give back their connections, and the first never does.
func LookBesideWatch(rank int, lease time.Duration) time.Duration {
	if rank == 1 {
		return 4 * lease
	}
	return 2 * lease
}

// TurnDelay is how long a waiter leaves the lock to those before it after an announced end that
// does not name this waiter. passed says that the end names another waiter, although no waiter is
// known to be before this one.
func TurnDelay(rank int, passed bool) time.Duration {
	if passed && rank == 1 {
		return TurnPatience
	}
	return TurnPatience * time.Duration(max(0, rank-1))
}

// FewListen says whether those in line call the dormant waiters: if not all in line listen, and
// fewer than half of MostListeners do.
func FewListen(marked, waiting int) bool { return marked < min(waiting, MostListeners/2) }

// Followers is what a holder knows of the waiters that may have the lock after it.
type Followers int

// The holder may have to call them.
const (
	NoneToCall  Followers = iota // all listen, or nobody is there, as far as is known
	SomeDormant                  // some in line didn't listen
	SomeAbsent                   // the server was full, so some may have given their connections back
)

// Patience is how long a holder that is done keeps the lock for the waiters that may be next. A
// dormant waiter hears the call at its next heartbeat.
func (f Followers) Patience(lease time.Duration) time.Duration {
	const beyond, most = 100 * time.Millisecond, 3 * time.Second
	switch f {
	case SomeDormant:
		return HearCall(lease) + beyond
	case SomeAbsent:
		return min(HearCall(lease), most)
	}
	return 0
}

// MayStay says whether a waiter keeps its connection, given the server's free connections and
// its total. Waiters have room while more than a fifth of all connections, and more than
// five, are free. The last in line are the first to go.
func MayStay(rank, waiting, free, of int) bool {
	const share, least = 5, 5
	lacking := max(of/share, least) + 1 - free
	return lacking <= 0 || rank == 1 || rank <= waiting-lacking
}

// CrowdedBackoff is the backoff of a waiter that gave its connection back, or found none. Finding
// room in between does not reset it.
func CrowdedBackoff() *pace.Backoff { return pace.Doubling(8*time.Second, 30*time.Second) }

// NextAway are the bounds of the random time for which a waiter with this backoff stays away.
// They are wide, so that the waiters do not all come back at once.
func NextAway(crowded *pace.Backoff) (least, most time.Duration) {
	most = crowded.Next()
	return most / 8, most
}

// AwayFor shortens the time that a waiter stays away, so that its last try still fits into the
// wait.
func AwayFor(chosen, left time.Duration) time.Duration {
	return min(chosen, max(left-time.Second, time.Second/2))
}

// FullBackoff is the backoff of a run that doesn't wait for the lock, on a server without room. One
// of the server's sessions will soon be done, so the pauses are short; but each rejected login
// leaves a line in the server's log, so they grow.
func FullBackoff() *pace.Backoff { return pace.Doubling(50*time.Millisecond, time.Second) }

// PollBackoff is the backoff of tries where there is no line.
func PollBackoff() *pace.Backoff { return pace.Doubling(250*time.Millisecond, time.Second) }

// NextPoll are the bounds of the random time until the next try. When the backoff has come
// to a second, a thousand waiters make five hundred tries a second.
func NextPoll(polls *pace.Backoff) (least, most time.Duration) {
	least = polls.Next()
	return least, 3 * least
}
