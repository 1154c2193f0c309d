package evidence

import (
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
)

// TestWhoseWordCounts: whose words count, and for whose runs.
func TestWhoseWordCounts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		role  uint32 // of the speaker; 0: its session is gone
		event Word
		want  time.Duration
		later bool // it is trusted with what it says next
	}{
		{"one of the holder's role", theirs, Dead, 0, false}, // that holder is dead
		{"one of the waiter's role", ours, Dead, 0, true},
		{"a stranger", nobody, Dead, theirDelay, false},
		{"a stranger who says clean", nobody, Clean, theirDelay, false},
		{"one that is gone", 0, Dead, theirDelay, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newTold(t)
			h.looks(holds(holder, theirs, 5))
			h.says(speaker, tt.event, 5)
			h.wants("before its role is known", theirDelay, true)
			if got := h.RolesWanted(); len(got) != 1 || got[0] != speaker {
				t.Errorf("it wants the roles of %v", got)
			}
			h.NoteRole(speaker, tt.role)
			h.wants("its role is known", tt.want, true)
			if got := h.Trusts(speaker); got != tt.later {
				t.Errorf("it trusts the speaker: %t, wanted %t", got, tt.later)
			}
			if got := h.RolesWanted(); len(got) != 0 {
				t.Errorf("it still wants the roles of %v", got)
			}
		})
	}

	t.Run("a speaker that is known because it stands in line", func(t *testing.T) {
		h := newTold(t)
		h.Saw(&Look{Role: ours, Holders: []Seat{holds(holder, theirs, 5)}, Line: []Seat{{PID: stranger, Role: nobody}, {PID: speaker, Role: theirs}}}, lockkey.ID{Number: 7})
		h.says(stranger, Clean, 5)
		h.wants("a stranger in line", theirDelay, true)
		h.says(speaker, Dead, 5)
		h.wants("another in line, of the holder's role", 0, true)
	})
	t.Run("a word that is older than the first look", func(t *testing.T) {
		h := newTold(t)
		h.says(speaker, Dead, 5)
		h.NoteRole(speaker, theirs)
		h.wants("nobody of that role has held it", testDelay, true)
		h.looks(holds(second, theirs, 0))
		h.wants("the word is older than what is seen", theirDelay, true)
	})
	t.Run("a role that has held the lock speaks for its own runs alone", func(t *testing.T) {
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.looks(holds(stranger, nobody, 0))
		h.says(stranger, Clean, 1<<62)
		h.wants("a stranger has held it after", theirDelay, true)
		h.says(holder, Clean, 5)
		h.wants("and the other says its end, too", 0, true)
	})
	t.Run("a role that has held the lock ends no run of the ledger", func(t *testing.T) {
		for name, lie := range map[string]func(h told){
			"a later token": func(h told) { h.looks(holds(stranger, nobody, 0)); h.says(stranger, Clean, 6) },
			"a start of its own": func(h told) {
				h.looks(holds(stranger, nobody, 0))
				h.says(stranger, Started, 5)
				h.says(stranger, Clean, 5)
			},
			"a token in its name":     func(h told) { h.looks(holds(stranger, nobody, 5)); h.says(stranger, Clean, 5) },
			"a token, and silence":    func(h told) { h.looks(holds(stranger, nobody, 5)); h.NoteSilence(holds(stranger, nobody, 5)) },
			"a later one and silence": func(h told) { h.looks(holds(stranger, nobody, 6)); h.NoteSilence(holds(stranger, nobody, 6)) },
		} {
			h := newTold(t)
			lie(h)
			h.wants(name, 0, true)
			if h.KnowsDead(5) {
				t.Errorf("%s: another role's run is dead by its word", name)
			}
		}
	})
	t.Run("what the waiter's own role has said stays", func(t *testing.T) {
		h := newTold(t)
		h.looks(holds(holder, ours, 5))
		h.says(holder, Clean, 5)
		h.looks(holds(second, theirs, 6))
		h.says(second, Clean, 6)
		if !h.KnowsDead(4) || !h.KnowsDead(5) || h.KnowsDead(6) {
			t.Errorf("4 is dead: %t, 5 is dead: %t, 6 is dead: %t", h.KnowsDead(4), h.KnowsDead(5), h.KnowsDead(6))
		}
	})
	t.Run("a stranger's token is no later than others' after a silence", func(t *testing.T) {
		h := newTold(t)
		h.says(stranger, Started, 1<<62)
		h.NoteRole(stranger, nobody)
		h.looks(holds(holder, ours, 5))
		h.NoteSilence(holds(holder, ours, 5))
		if !h.KnowsDead(4) || !h.KnowsDead(5) || h.KnowsDead(6) {
			t.Errorf("4 is dead: %t, 5 is dead: %t, 6 is dead: %t", h.KnowsDead(4), h.KnowsDead(5), h.KnowsDead(6))
		}
	})
	t.Run("the holder of a lock of another number", func(t *testing.T) {
		h := newTold(t)
		other := holds(holder, theirs, 5)
		other.ID.Number++
		h.looks(other)
		h.says(holder, Clean, 5)
		h.wants("the holder of another lock", testDelay, true)
	})
	t.Run("a holder that is not seen any more", func(t *testing.T) {
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(holder, Clean, 5)
		h.looks()
		h.says(holder, Clean, 5)
		h.looks(holds(second, nobody, 6))
		h.says(holder, Clean, 9)
		h.wants("a session of that number that held it once", theirDelay, true)
	})
}

// TestWhatAWordCloses: which runs a word that counts ends.
func TestWhatAWordCloses(t *testing.T) {
	two := func(t *testing.T) told {
		t.Helper()
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.looks(holds(second, theirs, 6))
		return h
	}
	for _, tt := range []struct {
		name   string
		say    func(told)
		want   time.Duration
		covers bool
	}{
		{"a covering word of the later", func(h told) { h.says(second, Clean, 6) }, 0, true},
		{"a covering dead of the later", func(h told) { h.says(speaker, Dead, 6); h.NoteRole(speaker, theirs) }, 0, true},
		{"a word of the later for itself", func(h told) { h.says(second, Clean, 6, alone) }, theirDelay, true},
		{"a dead of the later for itself", func(h told) { h.says(speaker, Dead, 6, alone); h.NoteRole(speaker, theirs) }, theirDelay, true},
		{"a word of the earlier", func(h told) { h.says(holder, Clean, 5) }, theirDelay, true},
		{"each for itself", func(h told) { h.says(holder, Clean, 5, alone); h.says(second, Clean, 6, alone) }, 0, false},
		{"the later for itself, then the earlier", func(h told) { h.says(second, Clean, 6, alone); h.says(holder, Clean, 5) }, 0, false},
		{"a word of a token between", func(h told) { h.says(second, Clean, 5) }, theirDelay, true},
		{"a word of one that was not known", func(h told) { h.says(speaker, Clean, 7); h.NoteRole(speaker, theirs) }, 0, true},
		{"the same, for itself", func(h told) { h.says(speaker, Clean, 7, alone); h.NoteRole(speaker, theirs) }, theirDelay, true},
		{"another's word of one that was not known", func(h told) { h.says(speaker, Dead, 7); h.NoteRole(speaker, theirs) }, theirDelay, true},
		{"a word of one that has waited for less than the others need", func(h told) {
			h.says(third, Started, 7)
			h.looks(holds(third, theirs, 7))
			h.says(third, Clean, 7, func(a *Announcement) { a.LostGrace = 0 })
		}, theirDelay, true},
		{"a late and repeated word", func(h told) {
			h.says(second, Clean, 6)
			h.says(second, Clean, 6)
			h.says(holder, Clean, 5)
		}, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := two(t)
			tt.say(h)
			h.wants("then", tt.want, tt.covers)
		})
	}

	t.Run("a holder that shows no token", func(t *testing.T) {
		h := newTold(t)
		h.looks(holds(holder, theirs, 0))
		h.says(speaker, Dead, 5, alone)
		h.NoteRole(speaker, theirs)
		h.wants("unknown token, another's word for itself", theirDelay, true)
		h.says(holder, Clean, 6, alone)
		h.wants("unknown token, its own word", 0, false)
	})
	// It may be the word of an earlier run.
	for _, e := range []Word{Dead, Clean} {
		t.Run("a "+string(e)+" that may be late, and a token that isn't known", func(t *testing.T) {
			h := newTold(t)
			h.looks(holds(holder, theirs, 0))
			h.says(speaker, e, 5)
			h.NoteRole(speaker, ours)
			h.wants("a holder that shows no token", theirDelay, true)

			h = newTold(t)
			h.looks(holds(holder, theirs, 5))
			h.says(holder, Clean, 5)
			h.NoteRefusal(boottime.Now().Add(freeAfterClean))
			h.says(speaker, e, 5)
			h.NoteRole(speaker, ours)
			h.wants("somebody has the lock, and nobody knows who", testDelay, true)
		})
	}
	t.Run("one that speaks for itself, and then a late word", func(t *testing.T) {
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(holder, Clean, 5, alone)
		h.says(speaker, Dead, 3)
		h.NoteRole(speaker, ours)
		h.wants("then", 0, false)
	})
	t.Run("a later start of the same session is another run", func(t *testing.T) {
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(holder, Clean, 5)
		h.says(holder, Started, 6)
		h.wants("it has started again", theirDelay, true)
		h.says(holder, Clean, 5)
		h.wants("its first end is said again", theirDelay, true)
		h.says(holder, Clean, 6)
		h.wants("it has ended again", 0, true)
	})
}

// TestForeignBetween: words that were heard before an unknown holder had the lock say nothing of
// that holder, however often they are repeated.
func TestForeignBetween(t *testing.T) {
	again := func(h told) {
		h.says(holder, Clean, 5)
		h.says(speaker, Dead, 5)
		h.NoteRole(speaker, ours)
		h.says(second, Clean, 4)
	}
	for name, between := range map[string]func(told){
		"a try is refused":         func(h told) { h.NoteRefusal(boottime.Now().Add(freeAfterClean)) },
		"a foreign holder is seen": func(h told) { h.looks(holds(third, nobody, 0)); h.looks() },
	} {
		h := newTold(t)
		h.looks(holds(second, theirs, 4))
		h.looks(holds(holder, theirs, 5))
		h.says(holder, Clean, 5)
		h.wants("a clean end", 0, true)
		between(h)
		delay := h.Verdict(testDelay).Delay
		if delay == 0 {
			t.Errorf("%s: it starts at once", name)
		}
		again(h)
		h.wants(name+", and all is said again", delay, true)
	}
}

// TestPassingNewcomer: a session that has announced its start, and will be gone when its end is
// heard, is asked for its role while it is there.
func TestPassingNewcomer(t *testing.T) {
	h := newTold(t)
	h.looks()
	h.says(second, Started, 6)
	if got := h.RolesWanted(); len(got) != 1 || got[0] != second {
		t.Fatalf("unverified %v", got)
	}
	h.NoteRole(second, ours)
	h.says(second, Clean, 6, alone)
	h.wants("it has ended", 0, false)

	h.says(third, Started, 7)
	for range 2 { // until NoteRole is called, RolesWanted stays the same
		if got := h.RolesWanted(); len(got) != 1 || got[0] != third {
			t.Fatalf("unverified %v", got)
		}
	}
	h.NoteRole(third, 0)
	if got := h.RolesWanted(); len(got) != 0 {
		t.Errorf("one that is gone is asked for again: %v", got)
	}
	h.wants("one that was gone at once", testDelay, true)
	h.says(third, Clean, 7)
	h.wants("and its end, before anybody has asked", testDelay, true)
	if got := h.RolesWanted(); len(got) != 1 || got[0] != third {
		t.Errorf("it has said more, and unverified are %v", got)
	}
	h.NoteRole(third, 0)
	h.wants("its end, which counts for its own start alone", 0, false)
}

// TestPassingStranger: a session that has announced a start and an end and is gone hides no other
// holder.
func TestPassingStranger(t *testing.T) {
	for name, says := range map[string]func(told){
		"its own end":                     func(h told) { h.says(stranger, Clean, 9) },
		"another's end":                   func(h told) { h.says(stranger, Clean, 5) },
		"its own end, by another session": func(h told) { h.says(stranger, Dead, 9) },
	} {
		h := newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(stranger, Started, 9)
		says(h)
		h.NoteRole(stranger, 0)
		h.wants(name+", beside a holder", theirDelay, true)

		h = newTold(t)
		h.looks(holds(holder, theirs, 5))
		h.says(holder, Clean, 5)
		h.says(stranger, Started, 9)
		if !h.NoteRefusal(boottime.Now().Add(freeAfterClean)) {
			t.Errorf("%s: somebody has the lock, and only a stranger says who", name)
		}
		says(h)
		h.NoteRole(stranger, 0)
		h.wants(name+", while somebody unknown has the lock", testDelay, true)
	}

	// Its start does not make a late word of another session count.
	h := newTold(t)
	h.says(stranger, Started, 5)
	h.says(speaker, Dead, 5)
	h.NoteRole(speaker, ours)
	h.wants("a late word, for a start that a stranger said", testDelay, true)
}

// TestNewcomerBetween: T1 is torn from the lock, and a newcomer whose first try is granted starts
// T2 and ends clean. A waiter that knows of T1 still waits for it.
func TestNewcomerBetween(t *testing.T) {
	h := newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(second, Started, 6)
	h.looks(holds(second, theirs, 6))
	h.says(second, Clean, 6, alone)
	h.wants("a newcomer has come and gone", theirDelay, true)

	// A holder that has waited for T1 speaks for it.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(second, Started, 6)
	h.looks(holds(second, theirs, 6))
	h.says(second, Clean, 6)
	h.wants("one who has waited T1 out", 0, true)
}
