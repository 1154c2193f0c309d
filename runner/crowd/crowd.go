// Package crowd has the rules for a waiter among many, as far as they follow from numbers alone:
// who listens, who watches, when each waiter looks and tries (Turn), and when it stays away.
// Package lock applies them on a server. The simulation of crowds (runner/bench/scale) applies them
// in virtual time, with its own random source. So the functions are told the time, and return
// bounds between which the caller draws a random number. (Turn draws one itself, after a stranger's
// word: the simulation has no strangers.) The rules are for speed, fairness and little load on the
// database: the promise does not depend on them.
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

	// TurnPatience is how long a waiter leaves a free lock to each of the waiters before it.
	TurnPatience = 300 * time.Millisecond
	// FirstBeat is the time from a grant to the holder's first heartbeat.
	FirstBeat = 500 * time.Millisecond
	// LookAfter is the time from when a holder's heartbeat is due to the look for it.
	LookAfter = 150 * time.Millisecond
	// CallEvery is how often a calling holder looks whether anybody listens.
	CallEvery = 20 * time.Millisecond
)

// HearCall is how often a dormant waiter asks whether somebody calls. A call to it lasts longer than
// that (Patience), and holds the lock without a command. So it asks at least every 5 s, however
// long the lease is.
func HearCall(lease time.Duration) time.Duration {
	const most = 5 * time.Second
	return min(leasetime.WaiterBeat(lease), most)
}

// FewListen says whether those in line call the dormant waiters: if not all in line listen, and
// fewer than half of MostListeners do.
func FewListen(marked, waiting int) bool { return marked < min(waiting, MostListeners/2) }

// ToCall says whom a holder may have to call, by what it knows of the waiters that may have the
// lock after it.
type ToCall int

// The holder may have to call them.
const (
	NoneToCall  ToCall = iota // all listen, or nobody is there, as far as is known
	SomeDormant               // some in line didn't listen
	SomeAbsent                // the server was full, so some may have given their connections back
)

// Patience is how long a holder that is done keeps the lock for the waiters that may be next. A
// dormant waiter hears the call at its next heartbeat.
func (c ToCall) Patience(lease time.Duration) time.Duration {
	const beyond, most = 100 * time.Millisecond, 3 * time.Second
	switch c {
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

// The backoffs follow. Each attempt costs the server something, and a rejected login leaves a line in
// its log, so all of them grow.

// AwayBackoff is for a server that may be down.
func AwayBackoff() *pace.Backoff { return pace.Doubling(200*time.Millisecond, 5*time.Second) }

// UrgentBackoff is the same where the next command depends on it: for the first in line, if the
// server answers with an error, and for the report of a loss.
func UrgentBackoff() *pace.Backoff { return pace.Doubling(50*time.Millisecond, 5*time.Second) }

// DeniedBackoff is for a server that refuses the login, for instance after the role or the database
// was dropped. It goes on refusing until somebody does something about it.
func DeniedBackoff() *pace.Backoff { return pace.Doubling(200*time.Millisecond, time.Minute) }

// CrowdedBackoff is for a waiter that gave its connection back, or found none. Finding room in
// between does not reset it.
func CrowdedBackoff() *pace.Backoff { return pace.Doubling(8*time.Second, 30*time.Second) }

// FullBackoff is for a run that doesn't wait for the lock, on a server without room: one of the
// server's sessions will soon be done.
func FullBackoff() *pace.Backoff { return pace.Doubling(50*time.Millisecond, 2*time.Second) }

// PollBackoff is for tries where there is no line.
func PollBackoff() *pace.Backoff { return pace.Doubling(250*time.Millisecond, time.Second) }

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

// NextPoll are the bounds of the random time until the next try. When the backoff has come
// to a second, a thousand waiters make five hundred tries a second.
func NextPoll(polls *pace.Backoff) (least, most time.Duration) {
	least = polls.Next()
	return least, 3 * least
}
