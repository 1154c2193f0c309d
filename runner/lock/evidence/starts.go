package evidence

import (
	"math"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
)

// knownStart is the start of a run whose command may be alive.
type knownStart struct {
	kind     kindOfStart
	pid      uint32        // of the session; 0 unless it is known
	token    int64         // 0: not known
	after    int64         // if the token isn't known: it is later than this one
	outlives time.Duration // how long its command may outlive the lock, by the holder's own settings
	noted    int           // seq when it was noted
}

// kindOfStart says whose start it is.
type kindOfStart int

const (
	ofSession kindOfStart = iota
	// ofUnknown is the start of a holder that was neither seen nor heard, but refused a try, or of
	// a prepared transaction, which has no session.
	ofUnknown
	// ofTooMany stands for all starts beyond those that can be remembered. It counts for as long a
	// delay as the longest of them, and no word closes it.
	ofTooMany
)

// delayFor is how long the waiter has to hold the lock because of a start: as long as the holder's
// settings require. But another role's holder is waited for no longer than the waiter's lease: the
// lease is the same on all nodes, no command outlives nine tenths of it, and whoever has the lock
// for a moment should not keep others from it for a day. An unconfirmed start adds nothing to the
// waiter's own delay.
func (e *Evidence) delayFor(s knownStart) time.Duration {
	switch {
	case !e.isConfirmed(s):
		return 0
	case s.kind == ofTooMany, e.trustIn(s.pid) == asOwn: // the former is the longest of several such delays
		return s.outlives
	}
	return min(s.outlives, e.waiter.Lease)
}

// outlives is how long the command can outlive its lock, by its holder's own settings.
func (a Announcement) outlives() time.Duration { return leasetime.DeadAfter(a.Lease, a.LostGrace) }

// noteStart notes a start. A session holds a lock at most once, so a later start of the same
// session replaces the earlier one. The next confirmed start also replaces a start without a session.
func (e *Evidence) noteStart(s knownStart) {
	s.noted = e.seq
	confirmed := e.isConfirmed(s)
	e.starts = slices.DeleteFunc(e.starts, func(known knownStart) bool {
		again := s.kind == ofSession && known.kind == ofSession && known.pid == s.pid
		takenOver := known.kind == ofUnknown && confirmed
		if !again && !takenOver {
			return false
		}
		s.token, s.outlives = max(s.token, known.token), max(s.outlives, known.outlives)
		return true
	})
	if s.token == 0 {
		if e.last != nil {
			s.after = e.last.token
		}
		for _, known := range e.starts {
			s.after = max(s.after, known.token)
		}
	}
	if len(e.starts) >= mostStarts {
		most := e.delayFor(s)
		for _, known := range e.starts {
			most = max(most, e.delayFor(known))
		}
		s = knownStart{kind: ofTooMany, token: math.MaxInt64, outlives: most, noted: e.seq}
		e.starts = slices.DeleteFunc(e.starts[1:], func(known knownStart) bool { return known.kind == ofTooMany })
	}
	e.starts = append(e.starts, s)
}

// isConfirmed says whether a start is known to be real: its session is no stranger, or it is known in
// another way than by the word of a session.
func (e *Evidence) isConfirmed(s knownStart) bool {
	return s.kind != ofSession || e.trustIn(s.pid) > asStranger
}
