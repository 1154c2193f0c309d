package lock

import (
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// Of the world that these tests tell a history of: sessions and their roles.
const (
	ours   = 10 // the role of the waiter
	theirs = 20 // that of the holders
	nobody = 30 // a stranger's

	holder   = 101
	second   = 102
	third    = 103
	speaker  = 150 // a last word's session
	stranger = 166
)

// testDelay is the waiter's own; that of holders is longer.
const (
	testDelay  = 10 * time.Second
	theirDelay = 25 * time.Second
	testLease  = 30 * time.Second // of all
)

// told is a history that is told what happens.
type told struct {
	t *testing.T
	*history
}

func newTold(t *testing.T) told {
	t.Helper()
	return told{t, newHistory(testDelay, testLease, false, make(chan struct{}, 1))}
}

func (h told) says(pid uint32, e event, token int64, change ...func(*Announcement)) {
	a := Announcement{Event: e, Token: token, Lease: 30 * time.Second, LostGrace: 5 * time.Second}
	for _, c := range change {
		c(&a)
	}
	h.hear(pid, payloadOf(a))
}

func alone(a *Announcement) { a.Alone = true }
func read(a *Announcement)  { a.Shared = true }

func holds(pid uint32, role uint32, token int64) seat {
	return seat{id: lockkey.ID{Number: 7}, pid: pid, role: role, token: token, delay: theirDelay}
}

// looks shows these holders, and nothing has been heard since the look was sent.
func (h told) looks(holders ...seat) { h.shows(h.looking(), holders...) }

func (h told) shows(since int, holders ...seat) {
	h.saw(&look{role: ours, holders: holders}, lockkey.ID{Number: 7}, since)
}

func (h told) wants(what string, delay time.Duration, entitled bool) {
	h.t.Helper()
	if got := h.verdict(); got != (verdict{delay, entitled}) {
		h.t.Errorf("%s: waits %v, entitled %v; want %v, %v", what, got.delay, got.entitled, delay, entitled)
	}
}

// TestHistoryStates: every row of the table of transitions.
func TestHistoryStates(t *testing.T) {
	quiet := func(h told) { h.looks() }
	running := func(h told) { h.looks(holds(holder, theirs, 5)) }
	ended := func(h told) {
		running(h)
		h.says(holder, clean, 5)
	}
	const isQuiet, isRunning, isEnded = "quiet", "running", "ended"
	state := func(h told) string {
		switch {
		case len(h.starts) > 0:
			return isRunning
		case h.spoken:
			return isEnded
		}
		return isQuiet
	}
	verify := func(h told, pid uint32) { h.verified(pid, ours, true) }
	for _, tt := range []struct {
		name string
		from func(told)
		then func(told)
		want string
	}{
		{"quiet, nothing", quiet, func(told) {}, isQuiet},
		{"quiet, a start", quiet, func(h told) { h.says(second, started, 6) }, isRunning},
		{"quiet, a holder is seen", quiet, func(h told) { h.looks(holds(second, theirs, 6)) }, isRunning},
		{"quiet, a foreign holder is seen", quiet, func(h told) { h.looks(holds(second, nobody, 0)) }, isRunning},
		{"quiet, a late word", quiet, func(h told) { h.says(speaker, dead, 6); verify(h, speaker) }, isQuiet},
		{"quiet, a repeated word", quiet, func(h told) { h.says(speaker, clean, 6); verify(h, speaker) }, isQuiet},
		{"quiet, a word that counts for nothing", quiet, func(h told) { h.says(stranger, dead, 6) }, isQuiet},
		{"running, a start", running, func(h told) { h.says(second, started, 6) }, isRunning},
		{"running, another holder is seen", running, func(h told) { h.looks(holds(second, theirs, 6)) }, isRunning},
		{"running, a word that discharges all", running, func(h told) { h.says(holder, clean, 5) }, isEnded},
		{"running, a word that discharges some", running, func(h told) {
			h.looks(holds(second, theirs, 6))
			h.says(second, clean, 6, alone)
		}, isRunning},
		{"running, a word of the one before", running, func(h told) {
			h.looks(holds(second, theirs, 6))
			h.says(holder, clean, 5)
		}, isRunning},
		{"running, refused", running, func(h told) { h.refused(time.Now().Add(freed)) }, isRunning},
		{"running, nobody is seen", running, func(h told) { h.looks() }, isRunning},
		{"running, a reader leaves", running, func(h told) { h.says(holder, left, 5) }, isRunning},
		{"ended, a start", ended, func(h told) { h.says(second, started, 6) }, isRunning},
		{"ended, a holder is seen", ended, func(h told) { h.looks(holds(second, theirs, 6)) }, isRunning},
		{"ended, another word", ended, func(h told) { h.says(holder, clean, 5) }, isEnded},
		{"ended, refused before the lock can be free", ended, func(h told) { h.refused(time.Now()) }, isEnded},
		{"ended, refused", ended, func(h told) { h.refused(time.Now().Add(freed)) }, isRunning},
		{"ended, nobody is seen", ended, func(h told) { h.looks() }, isEnded},
	} {
		h := newTold(t)
		tt.from(h)
		tt.then(h)
		if got := state(h); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if v := h.verdict(); (v.delay == 0) != (tt.want == isEnded) {
			t.Errorf("%s: %s, and waits %v", tt.name, tt.want, v.delay)
		}
		if h.heard() != (tt.want != isQuiet) {
			t.Errorf("%s: %s, and heard %v", tt.name, tt.want, h.heard())
		}
	}
}

// TestHistoryDelays: who has to wait does so for the longest that anybody's command
// may be alive for.
func TestHistoryDelays(t *testing.T) {
	h := newTold(t)
	h.wants("nothing is known", testDelay, true)
	h.looks(holds(holder, theirs, 5))
	h.wants("a holder is seen that says its delay", theirDelay, true)
	short := holds(second, theirs, 6)
	short.delay = 0
	h.looks(short)
	h.wants("another that says none", theirDelay, true)
	h.says(holder, clean, 5)
	h.wants("the first has ended", testDelay, true)

	h = newTold(t)
	h.says(stranger, started, 5, func(a *Announcement) { a.Lease = longestAnnounced })
	h.wants("one that was not seen to hold it says a long lease", testDelay, true)
	h.looks(holds(holder, theirs, 0))
	h.says(holder, started, 5, func(a *Announcement) { a.LostGrace = 8 * time.Second })
	h.wants("one that was seen has a lost-grace", session.TakeoverDelay(testLease)+8*time.Second, true)
	h.says(holder, started, 5, func(a *Announcement) { a.Lease = longestAnnounced })
	h.wants("it says a long lease, which is no longer than the waiter's own", testLease, true)

	none := told{t, newHistory(0, testLease, false, nil)}
	none.looks(holds(holder, theirs, 5))
	none.wants("without a lock-delay", 0, false)
}

// TestHistoryCounts: whose words count, and for whose tenures.
func TestHistoryCounts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		role  uint32 // of the speaker; 0: its session is gone
		event event
		want  time.Duration
	}{
		{"one of the holder's role", theirs, dead, 0},
		{"one of the waiter's role", ours, dead, 0},
		{"a stranger", nobody, dead, theirDelay},
		{"a stranger who says clean", nobody, clean, theirDelay},
		{"one that is gone", 0, dead, theirDelay},
	} {
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(speaker, tt.event, 5)
		h.wants(tt.name+", before its role is known", theirDelay, true)
		if got := h.unverified(); len(got) != 1 || got[0] != speaker {
			t.Errorf("%s: unverified %v", tt.name, got)
		}
		h.verified(speaker, tt.role, tt.role != 0)
		h.wants(tt.name, tt.want, true)
		if h.vouched(speaker) != (tt.want == 0) && len(h.starts) > 0 {
			t.Errorf("%s: vouched %v", tt.name, h.vouched(speaker))
		}
		if got := h.unverified(); len(got) != 0 {
			t.Errorf("%s: still unverified %v", tt.name, got)
		}
	}

	// Also one who stands in line, and is known by that.
	h := newTold(t)
	h.saw(&look{role: ours, holders: []seat{holds(holder, theirs, 5)}, line: []seat{{pid: stranger, role: nobody}, {pid: speaker, role: theirs}}}, lockkey.ID{Number: 7}, 0)
	h.says(stranger, clean, 5)
	h.wants("a stranger in line", theirDelay, true)
	h.says(speaker, dead, 5)
	h.wants("another in line, of the holder's role", 0, true)

	// A word that was said before anybody was seen counts from then on.
	h = newTold(t)
	h.says(speaker, dead, 5)
	h.verified(speaker, theirs, true)
	h.wants("nobody of that role has held it", testDelay, true)
	h.looks(holds(second, theirs, 0))
	h.wants("the word is older than what is seen", theirDelay, true)

	// A role that has held the lock speaks for its own tenures alone.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.looks(holds(stranger, nobody, 0))
	h.says(stranger, clean, 1<<62)
	h.wants("a stranger has held it after", theirDelay, true)
	h.says(holder, clean, 5)
	h.wants("and the other says its end, too", 0, true)

	// The lock of another number, and that of somebody who isn't seen any more.
	h = newTold(t)
	other := holds(holder, theirs, 5)
	other.id.Number++
	h.looks(other)
	h.says(holder, clean, 5)
	h.wants("the holder of another lock", testDelay, true)
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(holder, clean, 5)
	h.looks()
	h.says(holder, clean, 5)
	h.looks(holds(second, nobody, 6))
	h.says(holder, clean, 9)
	h.wants("a session of that number that held it once", theirDelay, true)
}

// TestHistoryDischarges: which tenures a word that counts ends.
func TestHistoryDischarges(t *testing.T) {
	two := func(t *testing.T) told {
		t.Helper()
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.looks(holds(second, theirs, 6))
		return h
	}
	for _, tt := range []struct {
		name     string
		say      func(told)
		want     time.Duration
		entitled bool
	}{
		{"an entitled word of the later", func(h told) { h.says(second, clean, 6) }, 0, true},
		{"an entitled dead of the later", func(h told) { h.says(speaker, dead, 6); h.verified(speaker, theirs, true) }, 0, true},
		{"a word of the later for itself", func(h told) { h.says(second, clean, 6, alone) }, theirDelay, true},
		{"a dead of the later for itself", func(h told) { h.says(speaker, dead, 6, alone); h.verified(speaker, theirs, true) }, theirDelay, true},
		{"a word of the earlier", func(h told) { h.says(holder, clean, 5) }, theirDelay, true},
		{"each for itself", func(h told) { h.says(holder, clean, 5, alone); h.says(second, clean, 6, alone) }, 0, false},
		{"the later for itself, then the earlier", func(h told) { h.says(second, clean, 6, alone); h.says(holder, clean, 5) }, 0, false},
		{"a word of a token between", func(h told) { h.says(second, clean, 5) }, theirDelay, true},
		{"a word of one that was not known", func(h told) { h.says(speaker, clean, 7); h.verified(speaker, theirs, true) }, 0, true},
		{"the same, for itself", func(h told) { h.says(speaker, clean, 7, alone); h.verified(speaker, theirs, true) }, theirDelay, true},
		{"another's word of one that was not known", func(h told) { h.says(speaker, dead, 7); h.verified(speaker, theirs, true) }, theirDelay, true},
		{"a word of one that has waited for less than the others need", func(h told) {
			h.says(third, started, 7)
			h.looks(holds(third, theirs, 7))
			h.says(third, clean, 7, func(a *Announcement) { a.LostGrace = 0 })
		}, theirDelay, true},
		{"a late and repeated word", func(h told) {
			h.says(second, clean, 6)
			h.says(second, clean, 6)
			h.says(holder, clean, 5)
		}, 0, true},
	} {
		h := two(t)
		tt.say(h)
		h.wants(tt.name, tt.want, tt.entitled)
	}

	// A holder that shows no token: it is earlier than the word if it was known before.
	h := newTold(t)
	h.looks(holds(holder, theirs, 0))
	h.says(speaker, dead, 5, alone)
	h.verified(speaker, theirs, true)
	h.wants("unknown token, another's word for itself", theirDelay, true)
	h.says(holder, clean, 6, alone)
	h.wants("unknown token, its own word", 0, false)

	// A word that may be late says nothing of a token that isn't known: it may be
	// that of an earlier tenure.
	for _, e := range []event{dead, clean} {
		h = newTold(t)
		h.looks(holds(holder, theirs, 0))
		h.says(speaker, e, 5)
		h.verified(speaker, ours, true)
		h.wants("unknown token, a word that may be late", theirDelay, true)

		h = newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(holder, clean, 5)
		h.refused(time.Now().Add(freed))
		h.says(speaker, e, 5)
		h.verified(speaker, ours, true)
		h.wants("somebody has the lock, and nobody knows who", testDelay, true)
	}
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(holder, clean, 5, alone)
	h.says(speaker, dead, 3)
	h.verified(speaker, ours, true)
	h.wants("one that speaks for itself, and then a late word", 0, false)

	// A later start of the same session is another tenure.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(holder, clean, 5)
	h.says(holder, started, 6)
	h.wants("it has started again", theirDelay, true)
	h.says(holder, clean, 5)
	h.wants("its first end is said again", theirDelay, true)
	h.says(holder, clean, 6)
	h.wants("it has ended again", 0, true)
}

// TestForeignBetween: words that were heard before somebody unknown had the lock say
// nothing of him, however often they are said again.
func TestForeignBetween(t *testing.T) {
	again := func(h told) {
		h.says(holder, clean, 5)
		h.says(speaker, dead, 5)
		h.verified(speaker, ours, true)
		h.says(second, clean, 4)
	}
	for name, between := range map[string]func(told){
		"a try is refused":         func(h told) { h.refused(time.Now().Add(freed)) },
		"a foreign holder is seen": func(h told) { h.looks(holds(third, nobody, 0)); h.looks() },
	} {
		h := newTold(t)
		h.looks(holds(second, theirs, 4))
		h.looks(holds(holder, theirs, 5))
		h.says(holder, clean, 5)
		h.wants("a clean end", 0, true)
		between(h)
		delay := h.verdict().delay
		if delay == 0 {
			t.Errorf("%s: it starts at once", name)
		}
		again(h)
		h.wants(name+", and all is said again", delay, true)
	}
}

// TestPassingNewcomer: one that has started, and has gone when its end is heard, is
// asked for its role while it is there.
func TestPassingNewcomer(t *testing.T) {
	h := newTold(t)
	h.looks()
	h.says(second, started, 6)
	if got := h.unverified(); len(got) != 1 || got[0] != second {
		t.Fatalf("unverified %v", got)
	}
	h.verified(second, ours, true)
	h.says(second, clean, 6, alone)
	h.wants("it has ended", 0, false)

	h.says(third, started, 7)
	h.unverified()
	h.verified(third, 0, false)
	if got := h.unverified(); len(got) != 0 {
		t.Errorf("one that is gone is asked for again: %v", got)
	}
	h.wants("one that was gone at once", testDelay, true)
}

// TestNewcomerBetween: T1 is torn, a newcomer whose first try is granted starts T2 and
// ends clean: who knows T1 still waits it out.
func TestNewcomerBetween(t *testing.T) {
	h := newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(second, started, 6)
	h.looks(holds(second, theirs, 6))
	h.says(second, clean, 6, alone)
	h.wants("a newcomer has come and gone", theirDelay, true)

	// Who waited T1 out before speaks for it.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(second, started, 6)
	h.looks(holds(second, theirs, 6))
	h.says(second, clean, 6)
	h.wants("one who has waited T1 out", 0, true)
}

// TestHistoryOrders: a look, a word and a start may overtake each other.
func TestHistoryOrders(t *testing.T) {
	h := newTold(t)
	h.looks(holds(holder, theirs, 5))
	since := h.looking()
	h.says(holder, clean, 5)
	h.shows(since, holds(holder, theirs, 5))
	h.wants("the word has overtaken the look", 0, true)

	since = h.looking()
	h.says(holder, started, 6)
	h.shows(since, holds(holder, theirs, 5))
	h.wants("the look shows an older token than was heard of", theirDelay, true)
	h.says(holder, clean, 6)
	h.wants("and then its end", 0, true)

	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(holder, clean, 5)
	h.looks(holds(holder, theirs, 6)) // sent after the word
	h.wants("the look is later than the word", theirDelay, true)

	h = newTold(t)
	since = h.looking()
	h.says(holder, clean, 5) // nothing was known of it yet
	h.shows(since, holds(holder, theirs, 5))
	h.wants("the word has overtaken the first look", 0, true)

	h = newTold(t)
	since = h.looking()
	h.says(holder, clean, 5)
	h.shows(since, holds(holder, theirs, 6))
	h.wants("the look shows a later tenure", theirDelay, true)
}
