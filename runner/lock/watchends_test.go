package lock

import (
	"testing"
	"time"

	"github.com/pglead/pglead/runner/lock/crowd"
)

// TestWatchEnds: what the first in line does when the holder that it watches is not what it
// was. The lock may be free for one whom that holder has named.
func TestWatchEnds(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		what  string
		state watchState
		rank  int
		turn  time.Duration // until it would try; 0: it wouldn't
		want  time.Duration // the same afterwards
		tries bool
	}{
		{"the lock is free", shouldTry, 1, 0, 0, true},
		{"it would try much later", shouldTry, 1, crowd.TryEvery, 0, true},
		{"the holder has named another", shouldTry, 1, crowd.TurnPatience, crowd.TurnPatience, true},
		{"the holder is silent", shouldLook, 1, 0, 0, false},
		{"another is before it", shouldTry, 2, 0, 0, false},
		{"another is before it, and may be dead", shouldTry, 2, crowd.TurnPatience, crowd.TurnPatience, true},
	} {
		w := &waiter{rank: tt.rank, schedule: schedule{lookAt: now.Add(time.Minute)}}
		if tt.turn != 0 {
			w.schedule.tryAt = now.Add(tt.turn)
		}
		w.lookOrTry(tt.state, now)
		if tries := !w.schedule.tryAt.IsZero(); tries != tt.tries || tries && !w.schedule.tryAt.Equal(now.Add(tt.want)) {
			t.Errorf("%s: it tries (%v) in %v", tt.what, tries, w.schedule.tryAt.Sub(now))
		}
		if !w.schedule.lookAt.Equal(now) {
			t.Errorf("%s: it looks in %v", tt.what, w.schedule.lookAt.Sub(now))
		}
	}
}
