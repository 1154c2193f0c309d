package evidence

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
)

// TestSessionIsGone: if a look comes while a session is ending, only the session's number is known. Two such
// sessions don't count as having the same role.
func TestSessionIsGone(t *testing.T) {
	gone := holds(holder, 0, 0)
	h := newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(stranger, Dead, 5)
	h.LookSent()
	h.Saw(&Look{Role: ours, Holders: []Seat{gone}, Line: []Seat{{PID: stranger}}, Sent: boottime.Now().Add(time.Second)}, lockkey.ID{Number: 7})
	h.wants("a stranger's dead, and both are caught", theirDelay, true)

	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.looks(gone)
	h.says(speaker, Dead, 5)
	h.NoteRole(speaker, theirs)
	h.wants("a dead of the role that the holder had", 0, true)
}

// TestNumberReused: a session that was seen with the lock is gone, and a while later a stranger's has
// its number. No word of the stranger's shortens the wait, whatever token it names; that of a session
// of the known one's role counts.
func TestNumberReused(t *testing.T) {
	begin := func(t *testing.T, missedFor time.Duration) told {
		t.Helper()
		h := newTold(t)
		h.looks(holds(third, theirs, 4))
		h.says(third, Clean, 4)
		h.looks(holds(holder, theirs, 5))
		h.Saw(&Look{Role: ours, Sent: boottime.Now(), Received: boottime.Now().Add(-missedFor)}, lockkey.ID{Number: 7})
		h.wants("before it speaks", theirDelay, true)
		return h
	}
	for name, say := range map[string]func(told){
		"nothing":          func(told) {},
		"that it left":     func(h told) { h.says(holder, Left, 3) },
		"an earlier end":   func(h told) { h.says(holder, Clean, 3) },
		"that end":         func(h told) { h.says(holder, Clean, 5) },
		"that death":       func(h told) { h.says(holder, Dead, 5) },
		"all ends":         func(h told) { h.says(holder, Clean, 1<<62) },
		"a run of its own": func(h told) { h.says(holder, Started, 9); h.says(holder, Clean, 9, alone) },
	} {
		for _, role := range []uint32{nobody, 0} {
			h := begin(t, time.Minute)
			say(h)
			h.wants(name+", not yet", theirDelay, true)
			for _, pid := range h.RolesWanted() {
				h.NoteRole(pid, role)
			}
			h.wants(fmt.Sprintf("%s, role %d", name, role), theirDelay, true)
			h.looks()
			h.wants(fmt.Sprintf("%s, role %d, and another look", name, role), theirDelay, true)
		}
	}
	h := begin(t, time.Minute)
	h.says(holder, Clean, 6)
	h.NoteRole(holder, theirs)
	h.wants("another of its role", 0, true)
	for name, show := range map[string]func(told){
		"in line": func(h told) {
			h.Saw(&Look{Role: ours, Line: []Seat{{PID: holder, Role: nobody}}}, lockkey.ID{Number: 7})
		},
		"with the lock": func(h told) { h.looks(holds(holder, nobody, 9)) },
		"after the waiter got the lock": func(h told) {
			h.NoteGranted()
			for pid, p := range h.peers {
				p.missed -= boottime.Instant(time.Minute)
				h.peers[pid] = p
			}
		},
	} {
		h = newTold(t)
		h.looks(holds(holder, theirs, 5))
		show(h)
		h.says(holder, Clean, 9)
		h.NoteRole(holder, nobody)
		h.wants("a stranger that is seen "+name, theirDelay, true)
	}
	h = begin(t, 0)
	h.says(holder, Clean, 5, sinceMark)
	h.wants("its own word, just late", 0, true)

	// Its role was asked for when it was gone. What its number says later is asked about again.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(holder, Clean, 5)
	h.says(second, Started, 7)
	h.NoteRole(second, 0)
	h.looks()
	h.says(second, Clean, 7)
	wanted := h.RolesWanted()
	if !slices.Contains(wanted, second) {
		t.Errorf("the roles of %v are wanted", wanted)
	}
	h.NoteRole(second, 0)
	h.wants("a start of a session that is gone, and its end", 0, true)
}

// TestNumberGivenUp: only numbers that a session may have are asked about. A stranger has spoken, then
// had the lock, and speaks again some time after a look has missed it, so that it may be another one.
func TestNumberGivenUp(t *testing.T) {
	h := newTold(t)
	h.says(stranger, Clean, 1)
	h.NoteRole(stranger, nobody)
	h.looks(holds(stranger, nobody, 0))
	h.Saw(&Look{Role: ours, Sent: boottime.Now(), Received: boottime.Now().Add(-time.Minute)}, lockkey.ID{Number: 7})
	h.says(stranger, Clean, 1<<62, sinceMark)
	h.wants("it may be another", theirDelay, true)
	for _, what := range []string{"the word", "the look", "one more"} {
		for _, pid := range h.RolesWanted() {
			if pid != stranger {
				t.Errorf("after %s the role of %d is wanted", what, pid)
			}
			h.NoteRole(pid, nobody)
		}
		h.wants("its role has ended its own run, "+what, 0, true)
		h.looks()
	}
}

// TestConfirmedLate: a start counts with its holder's settings as soon as its session is known, whether it
// was heard before or after that.
func TestConfirmedLate(t *testing.T) {
	const started = 6 // it announces a lease and a grace that require 25 s
	unseen := holds(second, theirs, started)
	unseen.Outlives = 0 // the statement of another role's session isn't visible
	for name, known := range map[string]struct{ before, after func(told) }{
		"asked for its role":   {after: func(h told) { h.NoteRole(second, ours) }},
		"seen with the lock":   {after: func(h told) { h.looks(unseen) }},
		"the other way around": {before: func(h told) { h.looks(unseen) }},
		"known from the line": {before: func(h told) {
			h.Saw(&Look{Role: ours, Line: []Seat{{PID: second, Role: ours}}}, lockkey.ID{Number: 7})
		}},
	} {
		h := newTold(t)
		h.looks()
		if known.before != nil {
			known.before(h)
		}
		h.says(second, Started, started)
		if known.after != nil {
			h.NoteRole(stranger, nobody)
			h.wants(name+", not yet", testDelay, true)
			known.after(h)
		}
		h.wants(name, theirDelay, true)
	}

	h := newTold(t)
	h.looks(holds(holder, theirs, 5))
	for i := range uint32(2 * mostStarts) {
		h.says(1000+i, Started, int64(100+i))
		h.wants("strangers say more starts than are remembered", theirDelay, true)
	}

	// Nobody waits because of what strangers say of themselves, however many they are.
	h = newTold(t)
	h.looks()
	for i := range uint32(2 * mostStarts) {
		h.says(1000+i, Started, int64(100+i), func(a *Announcement) { a.Lease = longestAnnounced })
		h.wants("strangers say a long lease", testDelay, true)
	}
}

// TestOverBeforeConfirmed: a run costs nobody a delay if it was over before it was known that its session
// counts.
func TestOverBeforeConfirmed(t *testing.T) {
	begun := func(t *testing.T) told {
		t.Helper()
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(holder, Clean, 5)
		h.says(second, Started, 7)
		return h
	}
	for name, then := range map[string]func(told){
		"it is gone":            func(h told) { h.says(second, Clean, 7); h.NoteRole(second, 0) },
		"it is of another role": func(h told) { h.says(second, Clean, 7); h.NoteRole(second, nobody) },
		"it is of another role, as a look has shown": func(h told) {
			h.Saw(&Look{Role: ours, Line: []Seat{{PID: second, Role: nobody}}}, lockkey.ID{Number: 7})
			h.says(second, Clean, 7)
		},
		"it ends, and then a look shows that it is of another role": func(h told) {
			h.says(second, Clean, 7)
			h.Saw(&Look{Role: ours, Line: []Seat{{PID: second, Role: nobody}}}, lockkey.ID{Number: 7})
		},
		"it ends after a try was refused": func(h told) { h.NoteRole(second, ours); h.NoteRefusal(longAfter()); h.says(second, Clean, 7) },
		"it is gone as a try is refused":  func(h told) { h.says(second, Clean, 7); h.NoteRole(second, 0); h.NoteRefusal(boottime.Now()) },
		"it was torn, and its role says that it is dead": func(h told) {
			h.NoteRole(second, 0)
			h.says(speaker, Dead, 7)
			h.NoteRole(speaker, ours)
		},
	} {
		h := begun(t)
		then(h)
		h.wants(name, 0, true)
	}
	h := begun(t)
	h.NoteRole(second, 0)
	h.says(speaker, Dead, 7)
	h.NoteRole(speaker, nobody)
	h.wants("a stranger says that it is dead", testDelay, true)
	h = begun(t)
	h.NoteRole(second, 0)
	h.says(speaker, Dead, 8)
	h.NoteRole(speaker, ours)
	h.wants("another is dead", testDelay, true)
}

// longAfter is the time at which the lock is certainly free after a word that was said just now.
func longAfter() boottime.Instant { return boottime.Now().Add(freeAfterClean) }

// TestLateUnlock: a holder's unlock comes long after its word. So a try is refused, and a look
// shows the holder once more.
func TestLateUnlock(t *testing.T) {
	refused := func(t *testing.T) told {
		t.Helper()
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(holder, Clean, 5)
		h.NoteRefusal(longAfter())
		h.wants("somebody refused a try", testDelay, true)
		return h
	}
	h := refused(t)
	h.looks(holds(holder, theirs, 5))
	h.wants("that was the holder", 0, true)
	h = refused(t)
	h.looks(holds(holder, theirs, 6))
	h.wants("which has it again", theirDelay, true)
	h = refused(t)
	h.looks(holds(second, theirs, 5))
	h.wants("another, with that token", theirDelay, true)

	// Nor does a word that doesn't count speak for a later session with the same number.
	h = newTold(t)
	h.says(second, Clean, 6)
	h.NoteRole(second, nobody)
	h.looks(holds(second, theirs, 6))
	h.wants("a stranger said it", theirDelay, true)
}

// TestCoverage: an end that was seen in a session's name is announced later, with the field all.
func TestCoverage(t *testing.T) {
	h := newTold(t)
	h.looks(holds(holder, ours, 5))
	s := holds(second, ours, 6)
	s.Ended = true
	h.looks(s)
	h.says(second, Clean, 6)
	h.wants("the mark in the name, and then the word for all", 0, true)
}

// TestKnownBeforeMark: what was known before the mark was taken may not be complete, since a start
// before that is not announced to a waiter without a mark.
func TestKnownBeforeMark(t *testing.T) {
	dead := func(h told) {
		h.says(speaker, Dead, 5)
		h.NoteRole(speaker, ours)
	}
	clean := func(change ...func(*Announcement)) func(told) {
		return func(h told) { h.says(holder, Clean, 5, change...) }
	}
	another := func(h told) {
		h.says(second, Clean, 6, sinceMark)
		h.NoteRole(second, ours)
	}
	seen := func(h told) { h.looks(holds(holder, theirs, 5)) }
	mark := func(h told) { h.NoteMark(testLSN) }
	for _, tt := range []struct {
		name string
		then []func(told)
		want time.Duration
	}{
		{"no mark", []func(told){seen, clean()}, testDelay},
		{"no mark, and another that has ended later", []func(told){seen, another}, testDelay},
		{"an end before the mark", []func(told){seen, clean(), mark}, testDelay},
		{"one that is heard after it, and was said before", []func(told){seen, mark, clean(beforeMark)}, testDelay},
		{"the same by an older version", []func(told){seen, mark, clean()}, testDelay},
		{"an end after the mark", []func(told){seen, mark, clean(sinceMark)}, 0},
		{"one that is heard before the mark's answer, and was said after the mark", []func(told){seen, clean(sinceMark), mark}, 0},
		{"an end after the mark, for itself alone", []func(told){seen, mark, clean(sinceMark, alone)}, 0},
		{"another end after the mark, for itself alone", []func(told){seen, mark, func(h told) { h.says(second, Clean, 6, sinceMark, alone); h.NoteRole(second, ours) }}, theirDelay},
		{"another look, and an end of unknown time", []func(told){seen, mark, seen, clean()}, 0},
		{"an end after the mark, said for the holder", []func(told){seen, mark, dead}, testDelay},
		{"the same, and the holder had been seen again", []func(told){seen, mark, seen, dead}, 0},
		{"another has ended later", []func(told){seen, mark, another}, 0},
		{"that is heard before the mark's answer", []func(told){seen, another, mark}, 0},
		{"another has started since the mark, and ended for itself alone", []func(told){mark, func(h told) {
			h.says(second, Started, 6)
			h.NoteRole(second, ours)
			h.says(second, Clean, 6, alone)
		}}, 0},
	} {
		h := told{t, New(Waiter{LockDelay: testDelay, Lease: testLease})}
		h.looks()
		for _, f := range tt.then {
			f(h)
		}
		if d := h.Verdict(testDelay).Delay; d != tt.want {
			t.Errorf("%s: waits %v, want %v", tt.name, d, tt.want)
		}
	}
}
