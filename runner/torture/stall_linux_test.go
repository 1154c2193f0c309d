package torture

import (
	"context"
	"sync"
	"time"
)

// stalls are the times in which this process had no processor, and so, most likely, no
// guard had one either: an overlap or a wait that comes of that is the machine's.
type stalls struct {
	mu  sync.Mutex
	all []stall
}

type stall struct{ from, to time.Duration } // boot time

const (
	stallTick  = 20 * time.Millisecond
	stallLeast = 200 * time.Millisecond
)

// watch notes each of them until it is told to end.
func (s *stalls) watch(ctx context.Context, note func(format string, args ...any)) {
	for before := uptime(); ctx.Err() == nil; {
		pause(ctx, stallTick)
		now := uptime()
		if now-before > stallLeast {
			s.mu.Lock()
			s.all = append(s.all, stall{before, now})
			s.mu.Unlock()
			note("nothing ran for %v", now-before)
		}
		before = now
	}
}

// longest is the longest that began or ended between two instants.
func (s *stalls) longest(from, to time.Duration) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		if one.to > from && one.from < to {
			longest = max(longest, one.to-one.from)
		}
	}
	return longest
}
