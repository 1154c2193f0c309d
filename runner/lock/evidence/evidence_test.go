package evidence

import (
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/leasetime"
)

// These are the sessions, and their roles, of which the tests tell a history.
const (
	ours   = 10 // the role of the waiter
	theirs = 20 // that of the holders
	nobody = 30 // a stranger's

	holder   = 101
	second   = 102
	third    = 103
	speaker  = 150 // a session that says a last word
	stranger = 166
)

// testDelay is the waiter's own lock-delay; what holders require is longer.
const (
	testDelay  = 20 * time.Second
	theirDelay = 25 * time.Second
	testLease  = 30 * time.Second // of all
)

// testLSN is the position of the write-ahead log when the waiter took its mark.
const testLSN = 1000

// told is the evidence of a waiter, which the tests tell what happens.
type told struct {
	t *testing.T
	*Evidence
}

func newTold(t *testing.T) told {
	t.Helper()
	return marked(t, New(Waiter{LockDelay: testDelay, Lease: testLease}))
}

// marked is the evidence of a waiter that has taken its mark. Others may have had the lock before.
func marked(t *testing.T, e *Evidence) told {
	t.Helper()
	e.Contest()
	e.NoteMark(testLSN)
	return told{t, e}
}

func (h told) says(pid uint32, e Word, token int64, change ...func(*Announcement)) {
	a := Announcement{Word: e, Token: token, CoversEarlier: true, Lease: 30 * time.Second, LostGrace: 5 * time.Second}
	for _, c := range change {
		c(&a)
	}
	h.Hear(pid, payloadOf(a))
}

func alone(a *Announcement) { a.CoversEarlier = false }

// sinceMark makes an announcement that of a session which had the lock after the waiter's mark was
// taken.
func sinceMark(a *Announcement) { a.LSN = testLSN + 1 }

func beforeMark(a *Announcement) { a.LSN = testLSN }

func read(a *Announcement) { a.Shared = true }

func holds(pid uint32, role uint32, token int64) Seat {
	return Seat{ID: lockkey.ID{Number: 7}, PID: pid, Role: role, Token: token, Outlives: theirDelay}
}

// looks lets a look show these holders. The look was sent long after all that was heard.
func (h told) looks(holders ...Seat) {
	h.LookSent()
	h.shows(freeAfterClean, holders...)
}

// shows lets the look that was sent last show these holders. It was sent so much later than now.
func (h told) shows(later time.Duration, holders ...Seat) {
	h.Saw(&Look{Role: ours, Holders: holders, Sent: boottime.Now().Add(later), Received: boottime.Now()}, lockkey.ID{Number: 7})
}

func (h told) wants(what string, delay time.Duration, covers bool) {
	h.t.Helper()
	if got := h.Verdict(testDelay); got != (Verdict{delay, covers}) {
		h.t.Errorf("%s: waits %v, covers %v; want %v, %v", what, got.Delay, got.CoversEarlier, delay, covers)
	}
}

// TestStates: every cell of the table of states.
func TestStates(t *testing.T) {
	asUntouched := func(h told) { h.looks() }
	asContested := func(h told) { h.looks(); h.Contest() }
	asRunning := func(h told) { h.looks(holds(holder, theirs, 5)) }
	asEnded := func(h told) {
		asRunning(h)
		h.says(holder, Clean, 5)
	}
	refused := func(h told) { h.NoteRefusal(longAfter()) }
	silent := func(h told) { h.LookSent(); h.NoteSilence(Seat{}) }
	verify := func(h told, pid uint32) { h.NoteRole(pid, ours) }
	for _, tt := range []struct {
		name string
		from func(told)
		then func(told)
		want state
	}{
		{"untouched, nothing", asUntouched, func(told) {}, untouched},
		{"untouched, a start", asUntouched, func(h told) { h.says(second, Started, 6) }, running},
		{"untouched, a holder is seen", asUntouched, func(h told) { h.looks(holds(second, theirs, 6)) }, running},
		{"untouched, a foreign holder is seen", asUntouched, func(h told) { h.looks(holds(second, nobody, 0)) }, running},
		{"untouched, a late word", asUntouched, func(h told) { h.says(speaker, Dead, 6); verify(h, speaker) }, untouched},
		{"untouched, a repeated word", asUntouched, func(h told) { h.says(speaker, Clean, 6); verify(h, speaker) }, untouched},
		{"untouched, one that was not seen had the lock since the mark", asUntouched, func(h told) { h.says(speaker, Clean, 6, sinceMark); verify(h, speaker) }, ended},
		{"untouched, the same, before the mark", asUntouched, func(h told) { h.says(speaker, Clean, 6, beforeMark); verify(h, speaker) }, untouched},
		{"untouched, the same for itself alone", asUntouched, func(h told) { h.says(speaker, Clean, 6, sinceMark, alone); verify(h, speaker) }, ended},
		{"untouched, the same by a stranger", asUntouched, func(h told) { h.says(stranger, Clean, 6, sinceMark); h.NoteRole(stranger, nobody) }, untouched},
		{"untouched, the same as a last word", asUntouched, func(h told) { h.says(speaker, Dead, 6, sinceMark); verify(h, speaker) }, untouched},
		{"untouched, a word that counts for nothing", asUntouched, func(h told) { h.says(stranger, Dead, 6) }, untouched},
		{"untouched, a holder's word overtakes the look", asUntouched, func(h told) {
			h.LookSent()
			h.says(holder, Clean, 5)
			h.shows(freeAfterClean, holds(holder, theirs, 5))
		}, ended},
		{"untouched, refused", asUntouched, refused, contested},
		{"untouched, silent", asUntouched, silent, ended},
		{"contested, nothing", asContested, func(told) {}, contested},
		{"contested, a start", asContested, func(h told) { h.says(second, Started, 6) }, running},
		{"contested, a late word", asContested, func(h told) { h.says(speaker, Dead, 6); verify(h, speaker) }, contested},
		{"contested, had since the mark", asContested, func(h told) { h.says(speaker, Clean, 6, sinceMark); verify(h, speaker) }, ended},
		{"contested, refused", asContested, refused, contested},
		{"contested, silent", asContested, silent, ended},
		{"contested, forgotten", asContested, func(h told) { h.Forget() }, contested},
		{"untouched, forgotten", asUntouched, func(h told) { h.Forget() }, untouched},
		{"running, forgotten", asRunning, func(h told) { h.Forget() }, contested},
		{"ended, forgotten", asEnded, func(h told) { h.Forget() }, contested},
		{"running, a start", asRunning, func(h told) { h.says(second, Started, 6) }, running},
		{"running, another holder is seen", asRunning, func(h told) { h.looks(holds(second, theirs, 6)) }, running},
		{"running, one before it had the lock since the mark", asRunning, func(h told) { h.says(speaker, Clean, 4, sinceMark); verify(h, speaker) }, running},
		{"running, a word that closes all", asRunning, func(h told) { h.says(holder, Clean, 5) }, ended},
		{"running, a word that closes some", asRunning, func(h told) {
			h.looks(holds(second, theirs, 6))
			h.says(second, Clean, 6, alone)
		}, running},
		{"running, a word of the one before", asRunning, func(h told) {
			h.looks(holds(second, theirs, 6))
			h.says(holder, Clean, 5)
		}, running},
		{"running, refused", asRunning, refused, running},
		{"running, silent", asRunning, silent, ended},
		{"running, silent, and meanwhile somebody starts", asRunning, func(h told) {
			h.LookSent()
			h.says(second, Started, 6)
			h.NoteSilence(Seat{})
		}, running},
		{"running, nobody is seen", asRunning, func(h told) { h.looks() }, running},
		{"running, a reader leaves", asRunning, func(h told) { h.says(holder, Left, 5) }, running},
		{"running, but only by a stranger that ends, too", asUntouched, func(h told) {
			h.says(stranger, Started, 9)
			h.says(stranger, Clean, 9)
			h.NoteRole(stranger, nobody)
		}, untouched},
		{"ended, a start", asEnded, func(h told) { h.says(second, Started, 6) }, running},
		{"ended, a holder is seen", asEnded, func(h told) { h.looks(holds(second, theirs, 6)) }, running},
		{"ended, another word", asEnded, func(h told) { h.says(holder, Clean, 5) }, ended},
		{"ended, refused before the lock can be free", asEnded, func(h told) { h.NoteRefusal(boottime.Now()) }, ended},
		{"ended, refused", asEnded, refused, running},
		{"ended, silent", asEnded, silent, ended},
		{"ended, nobody is seen", asEnded, func(h told) { h.looks() }, ended},
	} {
		h := told{t, New(Waiter{LockDelay: testDelay, Lease: testLease})}
		h.NoteMark(testLSN)
		tt.from(h)
		tt.then(h)
		if got := h.state(); got != tt.want {
			t.Errorf("%s: the state is %d, want %d", tt.name, got, tt.want)
		}
		if v := h.Verdict(testDelay); (v.Delay == 0) != (tt.want == ended) {
			t.Errorf("%s: the state is %d, and it waits %v", tt.name, tt.want, v.Delay)
		}
	}
}

// TestShortDelay: a waiter that waits for less than a command may live, lost-grace and all, covers no
// earlier one.
func TestShortDelay(t *testing.T) {
	const grace = 5 * time.Second
	for _, tt := range []struct {
		delay, grace time.Duration
		covers       bool
	}{
		{0, 0, false}, {time.Second, 0, false}, {testDelay - 1, 0, false}, {testDelay, 0, true}, {testLease, 0, true},
		{testDelay, grace, false}, {testDelay + grace - 1, grace, false}, {testDelay + grace, grace, true},
		{testLease, testLease, true},
	} {
		h := marked(t, New(Waiter{LockDelay: tt.delay, Lease: testLease, LostGrace: tt.grace}))
		h.wants("nothing is known", tt.delay, tt.covers)
		h.NoteRefusal(boottime.Now())
		h.wants("nobody knows who has the lock", tt.delay, tt.covers)
	}
}

// TestVerdictDelays: a waiter that has to wait does so for as long as any command may be alive.
func TestVerdictDelays(t *testing.T) {
	h := newTold(t)
	h.wants("nothing is known", testDelay, true)
	h.looks(holds(holder, theirs, 5))
	h.wants("a holder is seen that says its delay", theirDelay, true)
	short := holds(second, theirs, 6)
	short.Outlives = 0
	h.looks(short)
	h.wants("another that says none", theirDelay, true)
	h.says(holder, Clean, 5)
	h.wants("the first has ended", testDelay, true)

	h = newTold(t)
	h.says(stranger, Started, 5, func(a *Announcement) { a.Lease = longestAnnounced })
	h.wants("one that was not seen to hold it says a long lease", testDelay, true)
	h.looks(holds(holder, theirs, 0))
	h.says(holder, Started, 5, func(a *Announcement) { a.LostGrace = 8 * time.Second })
	h.wants("one that was seen has a lost-grace", leasetime.DeadAfter(testLease, 0)+8*time.Second, true)
	h.says(holder, Started, 5, func(a *Announcement) { a.Lease = longestAnnounced })
	h.wants("it says a long lease, but is of another role", testLease, true)
	h.looks(holds(second, ours, 6))
	h.says(second, Started, 6, func(a *Announcement) { a.Lease, a.LostGrace = 3*testLease, time.Second })
	h.wants("one of the waiter's role has a longer lease", leasetime.DeadAfter(3*testLease, time.Second), true)

	none := marked(t, New(Waiter{Lease: testLease}))
	none.looks(holds(holder, theirs, 5))
	none.wants("without a lock-delay", 0, false)
}

// TestOutOfOrder: a look, a word and a start may overtake each other.
func TestOutOfOrder(t *testing.T) {
	h := newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.LookSent()
	h.says(holder, Clean, 5)
	h.shows(freeAfterClean, holds(holder, theirs, 5))
	h.wants("the word has overtaken the look", 0, true)

	h.LookSent()
	h.says(holder, Started, 6)
	h.shows(freeAfterClean, holds(holder, theirs, 5))
	h.wants("the look shows an older token than was heard of", theirDelay, true)
	h.says(holder, Clean, 6)
	h.wants("and then its end", 0, true)

	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(holder, Clean, 5)
	h.looks(holds(holder, theirs, 6)) // sent after the word
	h.wants("the look is later than the word", theirDelay, true)

	h = newTold(t)
	h.LookSent()
	h.says(holder, Clean, 5) // nothing was known of the holder yet
	h.shows(freeAfterClean, holds(holder, theirs, 5))
	h.wants("the word has overtaken the first look", 0, true)

	h = newTold(t)
	h.LookSent()
	h.says(holder, Clean, 5)
	h.shows(freeAfterClean, holds(holder, theirs, 6))
	h.wants("the look shows a later run", theirDelay, true)

	// This look was sent just after the word, and so possibly before the unlock.
	gone := holds(holder, 0, 0) // the session is in the list of locks, but no longer in that of sessions
	for what, shown := range map[string]Seat{"the holder": holds(holder, theirs, 5), "a holder that is gone": gone} {
		between := func(said func(told)) told {
			h := newTold(t)
			h.looks(holds(holder, theirs, 5))
			said(h)
			h.LookSent()
			h.shows(0, shown)
			return h
		}
		h = between(func(h told) { h.says(holder, Clean, 5) })
		h.wants("between word and unlock "+what, 0, true)
		h.looks(shown)
		if shown.Token == 0 {
			h.wants("long after the word "+what, theirDelay, true)
		} else { // its unlock is late, and it shows the token that it has ended
			h.wants("long after the word "+what, 0, true)
		}
		h = between(func(h told) { h.says(second, Clean, 5) })
		h.wants("after another's word "+what, theirDelay, true)
		h = between(func(h told) { h.says(holder, Clean, 5); h.says(holder, Started, 6) })
		h.wants("which has started again "+what, theirDelay, true)
	}
}
