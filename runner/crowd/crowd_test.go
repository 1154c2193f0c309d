package crowd

import (
	"testing"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
)

// TestNextLook: a dormant waiter looks at the line's pace once it knows the pace, and soon if the
// line may just have begun to move.
func TestNextLook(t *testing.T) {
	const lease = 15 * time.Second
	const moving = true
	for _, tt := range []struct {
		what string
		rank int
		p    progress
		want time.Duration
	}{
		{"one that listens", MostListeners, progress{1, time.Second, moving}, 6 * time.Second},
		{"the first", 1, progress{1, time.Second, moving}, 3 * time.Second},
		{"one that has come", 64, progress{}, 200 * time.Millisecond},
		{"the first dormant, that has come", 25, progress{}, 100 * time.Millisecond},
		{"the line stands", 64, progress{0, 3 * time.Second, moving}, 6 * time.Second},
		{"the line has stood for long", 64, progress{0, 12 * time.Second, !moving}, 16 * time.Second},
		{"the line moves", 64, progress{40, 200 * time.Millisecond, moving}, 100 * time.Millisecond},
		{"the line moves slowly", 64, progress{5, 200 * time.Millisecond, moving}, 800 * time.Millisecond},
		{"the line hardly moves", 64, progress{1, time.Second, moving}, 5 * time.Second},
		{"the line moves after it has stood", 64, progress{1, time.Second, !moving}, 200 * time.Millisecond},
	} {
		if got := nextLook(tt.rank, tt.p, lease); got != tt.want {
			t.Errorf("%s: the next look is in %v, want %v", tt.what, got, tt.want)
		}
	}
}

// TestLooksOfOneCalled: after a call a dormant waiter sees in time that it is one of the first,
// which listen, and does not look more often than that takes, however fast the line moves.
func TestLooksOfOneCalled(t *testing.T) {
	const lease, from, most = 15 * time.Second, 124, 12
	for _, perSecond := range []float64{2, 13, 90, 200} {
		p, looks, seen := progress{in: 8 * time.Second}, 0, from+1
		for at := time.Duration(0); seen > MostListeners; at += p.in {
			rank := from - int(perSecond*at.Seconds())
			if looks++; rank < 1 {
				t.Errorf("%v places a second: its turn has passed", perSecond)
				break
			}
			p.moved = seen - rank
			p = progress{in: nextLook(rank, p, lease), moving: p.moved > 0}
			seen = rank
		}
		onTheWay := float64(from-MostListeners) / perSecond / leasetime.WaiterBeat(lease).Seconds()
		if looks > most+int(onTheWay) {
			t.Errorf("%v places a second: %d looks, more than %d + %.0f", perSecond, looks, most, onTheWay)
		}
	}
}
