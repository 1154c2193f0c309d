package torture

import (
	"fmt"
	"slices"
	"time"
)

// life is the witnessed life of one command: from the first to the last time
// stamp of any of its processes.
type life struct {
	token       int64
	host        string
	first, last time.Duration // boot time
	excused     bool          // pglead and guard were killed at once: not promised
}

// history is all that a run's witnesses left.
type history []life

func (h history) sort() {
	slices.SortFunc(h, func(a, b life) int { return int(a.first - b.first) })
}

// overlap is two commands that ran at once.
type overlap struct {
	old, young life
	by         time.Duration
}

func (o overlap) String() string {
	return fmt.Sprintf("token %d on %s and token %d on %s for %v", o.old.token, o.old.host, o.young.token, o.young.host, o.by)
}

// overlaps finds every pair of lives that have an instant in common.
func (h history) overlaps() []overlap {
	h.sort()
	var found []overlap
	for i, old := range h {
		for _, young := range h[i+1:] {
			if young.first > old.last {
				break
			}
			found = append(found, overlap{old, young, min(old.last, young.last) - young.first})
		}
	}
	return found
}

// disorder finds a command with a smaller token than one that came before.
func (h history) disorder() error {
	h.sort()
	for i := 1; i < len(h); i++ {
		if h[i].token <= h[i-1].token {
			return fmt.Errorf("token %d after %d", h[i].token, h[i-1].token)
		}
	}
	return nil
}

// next is the first command that starts after an instant.
func (h history) next(after time.Duration) (life, bool) {
	h.sort()
	for _, l := range h {
		if l.first > after {
			return l, true
		}
	}
	return life{}, false
}
