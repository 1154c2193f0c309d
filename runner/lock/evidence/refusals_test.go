package evidence

import (
	"math"
	"testing"

	"github.com/pglead/pglead/runner/boottime"
)

// TestRefused: refused tries long after a word mean that there is another holder.
func TestRefused(t *testing.T) {
	h := newTold(t)
	if h.NoteRefusal(boottime.Now().Add(freeAfterClean)) {
		t.Error("with nothing known a refusal is news")
	}
	h.looks(holds(holder, theirs, 5))
	if h.NoteRefusal(boottime.Now().Add(freeAfterClean)) {
		t.Error("with a holder known a refusal is news")
	}
	h.says(holder, Clean, 5)
	if !h.NoteRefusal(boottime.Now().Add(freeAfterClean)) {
		t.Error("after a clean end a refusal is no news")
	}
	h.wants("refused after a clean end", testDelay, true)
	h.looks(holds(second, nobody, 0)) // psql, say
	h.looks()
	h.wants("a foreign holder is gone", theirDelay, true)
	h.says(holder, Clean, 5)
	h.wants("the word from before is repeated", theirDelay, true)
}

// TestSilence: silence closes the starts that were made by then.
func TestSilence(t *testing.T) {
	h := newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.looks(holds(second, theirs, 6))
	h.LookSent()
	h.NoteSilence(Seat{})
	h.wants("the holder has been silent", 0, true)
	h.says(third, Started, 7)
	h.wants("and then somebody starts", testDelay, true)

	// After the session's end another session gets the lock before this answer is read.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.LookSent()
	h.says(third, Started, 7)
	h.NoteSilence(Seat{})
	h.wants("somebody has started while the session was being ended", testDelay, true)

	// The look that shows the holder notes it once more, after the look was sent.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.NoteSilence(holds(holder, theirs, 5))
	h.wants("the holder that the look has shown was silent", 0, true)
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.says(third, Started, 7)
	h.NoteSilence(holds(holder, theirs, 5))
	h.wants("somebody has started since the look was sent, before the session was ended", testDelay, true)

	// The same, with more starts than are remembered.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	for i := range uint32(mostStarts) {
		h.says(1000+i, Started, int64(10+i))
	}
	h.LookSent()
	h.says(third, Started, 100)
	h.NoteSilence(Seat{})
	h.wants("one of many has started while the session was being ended", theirDelay, true)
	h.LookSent()
	h.NoteSilence(Seat{})
	h.wants("all of many had started before", 0, true)
	if h.KnowsDead(101) {
		t.Error("a later run is taken for dead")
	}
}

// TestReaders: readers don't wait for each other, and a writer waits for each of them.
func TestReaders(t *testing.T) {
	reading := holds(holder, theirs, 5)
	reading.Shared = true
	h := marked(t, New(Waiter{LockDelay: testDelay, Lease: testLease, Shared: true}))
	h.looks(reading)
	h.says(second, Started, 6, read)
	h.wants("a reader after readers", testDelay, true)
	if h.state() != contested {
		t.Error("a reader has heard of readers")
	}
	h.looks(holds(third, theirs, 7))
	h.says(third, Clean, 7)
	h.says(second, Started, 8, read)
	h.wants("a reader after a clean writer", 0, true)

	h = newTold(t)
	h.looks(reading)
	h.says(holder, Left, 5)
	h.wants("a writer after a reader that has left", theirDelay, true)
}

// TestManyBriefRuns: more brief runs are heard than words are remembered, before anybody has asked for
// their roles. Nothing is left of their starts that no word could close.
func TestManyBriefRuns(t *testing.T) {
	h := newTold(t)
	h.looks()
	for i := range uint32(3 * mostStarts) {
		h.says(1000+i, Started, int64(10+i))
		h.says(1000+i, Clean, int64(10+i))
	}
	if len(h.starts) > mostWords {
		t.Errorf("%d starts are remembered", len(h.starts))
	}
	for _, pid := range h.RolesWanted() {
		h.NoteRole(pid, 0)
	}
	if tokens, incomplete := h.OpenStarts(); len(tokens) > 0 || incomplete {
		t.Errorf("open: %v, %t", tokens, incomplete)
	}
}

// TestIsBounded: there is a limit to what is remembered, and starts that are forgotten do not count
// as ended.
func TestIsBounded(t *testing.T) {
	h := newTold(t)
	for i := range uint32(3 * mostStarts) {
		h.says(1000+i, Started, int64(i))
	}
	if len(h.starts) > mostStarts {
		t.Errorf("%d starts are remembered", len(h.starts))
	}
	h.says(speaker, Dead, 1<<62)
	h.NoteRole(speaker, ours)
	h.says(speaker, Clean, math.MaxInt64)
	if v := h.Verdict(testDelay); v.Delay == 0 {
		t.Error("what was forgotten is taken for ended")
	}
	for i := range uint32(3 * mostWords) {
		h.says(5000+i, Dead, int64(i))
	}
	if len(h.words) > mostWords || len(h.RolesWanted()) > mostWords {
		t.Errorf("%d words are remembered", len(h.words))
	}
}
