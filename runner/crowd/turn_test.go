package crowd

import (
	"testing"
	"testing/synctest"
	"time"
)

// These are the sessions in the tests of a turn: this waiter, the one just before it, the holder,
// and a stranger.
const (
	self uint32 = iota + 1
	neighbour
	holder
	stranger
)

const never = -1 * time.Second

// turnAt is the turn of a waiter of this rank, with nothing planned but a look in a minute.
func turnAt(rank int) *Turn {
	t := &Turn{Own: self, Lease: 15 * time.Second, Rank: rank, lookAt: time.Now().Add(time.Minute)}
	if rank > 1 {
		t.ahead = []uint32{neighbour}
	}
	return t
}

// due is how soon the time comes for which something is planned.
func due(at time.Time) time.Duration {
	if at.IsZero() {
		return never
	}
	return time.Until(at)
}

// triesIn makes sure that a try is planned for that time from now, or never.
func (t *Turn) triesIn(tb testing.TB, what string, want time.Duration) {
	tb.Helper()
	if try := due(t.tryAt); try != want {
		tb.Errorf("%s: it tries in %v, want %v", what, try, want)
	}
}

// TestTurnByAnnouncement: what a waiter plans when it has heard an announcement, by its place in line.
func TestTurnByAnnouncement(t *testing.T) {
	clean := func(to uint32) func(*Turn) { return func(t *Turn) { t.HeardEnd(time.Now(), to) } }
	started := func(by uint32) func(*Turn) {
		return func(t *Turn) { t.HeardStart(time.Now(), by, by != stranger, false) }
	}
	const minute = time.Minute
	for _, tt := range []struct {
		what      string
		rank      int
		tries     time.Duration // before, or never
		hears     func(*Turn)
		try, look time.Duration
		burst     bool
		rankAfter int
	}{
		{"an end names it", 3, never, clean(self), 0, minute, true, 3},
		{"an end names nobody, and it is the first", 1, never, clean(0), 0, minute, true, 1},
		{"an end names another, though it is the first", 1, never, clean(neighbour), TurnPatience, minute, true, 1},
		{"an end names the one before it", 2, never, clean(neighbour), TurnPatience, minute, false, 2},
		{"an end, and two are before it", 3, never, clean(0), 2 * TurnPatience, minute, false, 3},
		{"an end that is said again", 3, 0, clean(0), 0, minute, false, 3},
		{"an end names it, and the next one another", 2, never, func(t *Turn) { clean(self)(t); clean(neighbour)(t) }, 0, minute, true, 2},
		{"the one before it has started", 2, 0, started(neighbour), tryEvery, lookAtNew, false, 1},
		{"another has started", 2, 0, started(holder), never, lookAtNew, false, 2},
		{"another has started, and it does not watch", MostWatchers + 1, 0, started(holder), never, minute, false, MostWatchers + 1},
		{"a stranger has started", 1, 0, started(stranger), 0, lookAtOnce, false, 1},
		{"a stranger has started after an end", 1, never, func(t *Turn) { clean(0)(t); started(stranger)(t) }, 0, lookAtOnce, true, 1},
		{"a stranger has started, and it is far behind", triesWhatsFree + 1, 0, started(stranger), never, minute, false, triesWhatsFree + 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			turn := turnAt(tt.rank)
			if tt.tries != never {
				turn.tryAt = time.Now().Add(tt.tries)
			}
			tt.hears(turn)
			turn.triesIn(t, tt.what, tt.try)
			if turn.burst != tt.burst {
				t.Errorf("%s: it tries many times: %t", tt.what, turn.burst)
			}
			look := due(turn.lookAt)
			if tt.look == lookAtOnce && look >= 0 && look < lookAtOnce { // at random
				look = lookAtOnce
			}
			if look != tt.look {
				t.Errorf("%s: it looks in %v", tt.what, look)
			}
			if turn.Rank != tt.rankAfter {
				t.Errorf("%s: its rank is %d", tt.what, turn.Rank)
			}
		})
	}
}

// TestPlanAfterLook: what a waiter plans when it has looked.
func TestPlanAfterLook(t *testing.T) {
	for _, tt := range []struct {
		what                  string
		rank, looks           int
		held, free, knowsLess bool
		try                   time.Duration
	}{
		{"it is held", 1, 1, true, false, false, never},
		{"it is free", 1, 1, false, true, false, 0},
		{"it is free, and others know more", 1, 1, false, true, true, TurnPatience},
		{"it is free, and another is before it", 2, 1, false, true, false, never},
		{"it is free for the second time", 2, 2, false, true, false, 0},
		{"it is free for the second time, and many are before it", triesWhatsFree + 1, 2, false, true, false, never},
		{"there is a gate", 1, 1, false, false, false, never},
	} {
		synctest.Test(t, func(t *testing.T) {
			turn := turnAt(tt.rank)
			for range tt.looks {
				turn.Looked(time.Now(), Situation{Rank: tt.rank, Held: tt.held, Free: tt.free, KnowsLess: tt.knowsLess})
			}
			turn.triesIn(t, tt.what, tt.try)
		})
	}
}

// TestTryLater: the first in line does not rely on announcements alone.
func TestTryLater(t *testing.T) {
	for _, tt := range []struct {
		what    string
		rank    int
		watches bool
		try     time.Duration
	}{
		{"it sees nothing", 1, false, tryEvery},
		{"its heartbeat watches", 1, true, never},
		{"another is before it", 2, false, never},
	} {
		synctest.Test(t, func(t *testing.T) {
			turn := turnAt(tt.rank)
			turn.TryLater(time.Now(), tt.watches)
			turn.triesIn(t, tt.what, tt.try)
		})
	}
}

// TestWatchEnds: what a watch has seen makes it time for a look, and makes only the very first in
// line try.
func TestWatchEnds(t *testing.T) {
	for _, tt := range []struct {
		what string
		free bool
		rank int
		turn time.Duration // until it would try, or never
		want time.Duration // the same afterwards
	}{
		{"the lock is free", true, 1, never, 0},
		{"it would try much later", true, 1, tryEvery, 0},
		{"the holder has named another", true, 1, TurnPatience, TurnPatience},
		{"the holder is silent", false, 1, never, never},
		{"another is before it", true, 2, never, never},
		{"another is before it, and may be dead", true, 2, TurnPatience, TurnPatience},
	} {
		synctest.Test(t, func(t *testing.T) {
			turn := turnAt(tt.rank)
			if tt.turn != never {
				turn.tryAt = time.Now().Add(tt.turn)
			}
			turn.WatchEnds(time.Now(), tt.free)
			turn.triesIn(t, tt.what, tt.want)
			if look := due(turn.lookAt); look != 0 {
				t.Errorf("%s: it looks in %v", tt.what, look)
			}
		})
	}
}
