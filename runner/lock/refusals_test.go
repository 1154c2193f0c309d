package lock

import (
	"testing"
	"time"
)

// TestRefused: many tries in vain after a word mean that there is somebody else.
func TestRefused(t *testing.T) {
	h := newTold(t)
	if h.noteRefusal(time.Now().Add(freeAfterClean)) {
		t.Error("with nothing known a refusal is news")
	}
	h.looks(holds(holder, theirs, 5))
	if h.noteRefusal(time.Now().Add(freeAfterClean)) {
		t.Error("with a holder known a refusal is news")
	}
	h.says(holder, wordClean, 5)
	if !h.noteRefusal(time.Now().Add(freeAfterClean)) {
		t.Error("after a clean end a refusal is no news")
	}
	h.wants("refused after a clean end", testDelay, true)
	h.looks(holds(second, nobody, 0)) // psql, say
	h.looks()
	h.wants("a foreign holder is gone", theirDelay, true)
	h.says(holder, wordClean, 5)
	h.wants("the word from before is repeated", theirDelay, true)
}

// TestSilence: silence discharges what had started by then.
func TestSilence(t *testing.T) {
	h := newTold(t)
	h.looks(holds(holder, theirs, 5))
	h.looks(holds(second, theirs, 6))
	h.bury(h.looking(), seat{})
	h.wants("the holder has been silent", 0, true)
	h.says(third, wordStarted, 7)
	h.wants("and then somebody starts", testDelay, true)

	// The session's end lets another have the lock before its answer is read.
	h = newTold(t)
	h.looks(holds(holder, theirs, 5))
	since := h.looking()
	h.says(third, wordStarted, 7)
	h.bury(since, seat{})
	h.wants("somebody has started while the session was being ended", testDelay, true)
}

// TestReaders: readers don't care for each other, and a writer for each of them.
func TestReaders(t *testing.T) {
	reading := holds(holder, theirs, 5)
	reading.shared = true
	h := told{t, newHistory(testDelay, testLease, true, nil)}
	h.looks(reading)
	h.says(second, wordStarted, 6, read)
	h.wants("a reader after readers", testDelay, true)
	if h.heard() {
		t.Error("a reader has heard of readers")
	}
	h.looks(holds(third, theirs, 7))
	h.says(third, wordClean, 7)
	h.says(second, wordStarted, 8, read)
	h.wants("a reader after a clean writer", 0, true)

	h = newTold(t)
	h.looks(reading)
	h.says(holder, wordLeft, 5)
	h.wants("a writer after a reader that has left", theirDelay, true)
}

// TestHistoryIsBounded: so much is remembered and no more, and what is forgotten has
// not ended.
func TestHistoryIsBounded(t *testing.T) {
	h := newTold(t)
	for i := range uint32(3 * mostStarts) {
		h.says(1000+i, wordStarted, int64(i))
	}
	if len(h.starts) > mostStarts || len(h.drainEvents()) > mostEvents {
		t.Errorf("%d starts are remembered", len(h.starts))
	}
	h.says(speaker, wordDead, 1<<62)
	h.verified(speaker, ours, true)
	if v := h.verdict(); v.delay == 0 {
		t.Error("what was forgotten is taken for ended")
	}
	for i := range uint32(3 * mostWords) {
		h.says(5000+i, wordDead, int64(i))
	}
	if len(h.ends) > mostWords || len(h.unverified()) > mostWords {
		t.Errorf("%d words are remembered", len(h.ends))
	}
	if len(h.drainEvents()) == 0 || len(h.drainEvents()) != 0 {
		t.Error("what has happened is not told once")
	}
}
