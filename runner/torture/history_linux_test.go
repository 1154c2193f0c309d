package torture

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/boottime"
)

// uptime is the clock of the witnesses, which write down what it shows.
func uptime() time.Duration { return time.Duration(boottime.Now()) }

// life is the witnessed life of one command: from the first to the last time
// stamp of any of its processes.
type life struct {
	token       int64
	host        string
	locks       []string      // keys or, with slots, the key's slot
	shared      bool          // held with others
	first, last time.Duration // boot time
	excused     bool          // pglead and guard were killed at once: not promised
	complete    bool          // its daemon is there: it may be struck
}

// meets says whether two lives have a lock in common.
func (l life) meets(other life) bool {
	return slices.ContainsFunc(l.locks, func(lock string) bool { return slices.Contains(other.locks, lock) })
}

// excludes says whether two lives must not have an instant in common.
func (l life) excludes(other life) bool { return l.meets(other) && (!l.shared || !other.shared) }

// history is all that a run's witnesses left.
type history []life

func (h history) sort() {
	slices.SortFunc(h, func(a, b life) int { return int(a.first - b.first) })
}

// overlap is two commands that ran at once under one lock.
type overlap struct {
	old, young life
	by         time.Duration
}

func (o overlap) String() string {
	return fmt.Sprintf("token %d on %s and token %d on %s for %v", o.old.token, o.old.host, o.young.token, o.young.host, o.by)
}

// overlaps finds every pair of lives that have an instant in common and must
// not.
func (h history) overlaps() []overlap {
	h.sort()
	var found []overlap
	for i, old := range h {
		for _, young := range h[i+1:] {
			if young.first > old.last {
				break
			}
			if old.excludes(young) {
				found = append(found, overlap{old, young, min(old.last, young.last) - young.first})
			}
		}
	}
	return found
}

// disorder finds a token that was drawn twice, or one that is smaller than that
// of a command which had the same lock before. Those who hold a lock together
// draw their tokens in no order.
func (h history) disorder() error {
	h.sort()
	seen := map[int64]bool{}
	last, lastExclusive := map[string]int64{}, map[string]int64{}
	for _, l := range h {
		if seen[l.token] {
			return fmt.Errorf("token %d twice", l.token)
		}
		seen[l.token] = true
		for _, lock := range l.locks {
			before := last[lock]
			if l.shared {
				before = lastExclusive[lock]
			} else {
				lastExclusive[lock] = l.token
			}
			if l.token < before {
				return fmt.Errorf("token %d after %d, of %s", l.token, before, lock)
			}
			last[lock] = max(last[lock], l.token)
		}
	}
	return nil
}

// save writes a line a life, with the clock time of its first stamp, as logs have it.
func (h history) save(path string) error {
	h.sort()
	var b strings.Builder
	booted := time.Now().Add(-uptime())
	for _, l := range h {
		fmt.Fprintf(&b, "%s %+v\n", booted.Add(l.first).Format(time.RFC3339Nano), l)
	}
	return os.WriteFile(path, []byte(b.String()), 0o666)
}

// held are all locks that were ever held.
func (h history) held() []string {
	var locks []string
	for _, l := range h {
		locks = append(locks, l.locks...)
	}
	slices.Sort(locks)
	return slices.Compact(locks)
}

// next is the first command after an instant that has a lock of a life's.
func (h history) next(after time.Duration, of life) (life, bool) {
	h.sort()
	for _, l := range h {
		if l.first > after && l.meets(of) {
			return l, true
		}
	}
	return life{}, false
}
