package runner

import (
	"sync"

	"github.com/pglead/pglead/lockkey"
)

// mostEnds is how many of the latest ends are remembered at least; twice as many are the most. A
// list may have more items, and anybody may announce ends of others.
const mostEnds = 1 << 19

// itemEnds are how the latest items ended, here and elsewhere, by their names.
type itemEnds struct {
	mu             sync.Mutex
	latest, before map[lockkey.ID]itemEnd // when latest is full, it takes the place of before
}

// itemEnd is how an item's command ended, the last time.
type itemEnd struct {
	ok   bool
	here bool // this process has run it, then or earlier
}

func (e *itemEnds) of(id lockkey.ID) (end itemEnd, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.find(id)
}

// find is of, for a caller that holds mu.
func (e *itemEnds) find(id lockkey.ID) (end itemEnd, ended bool) {
	if end, ended = e.latest[id]; !ended {
		end, ended = e.before[id]
	}
	return end, ended
}

func (e *itemEnds) add(id lockkey.ID, end itemEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	earlier, _ := e.find(id)
	end.here = end.here || earlier.here // also if a later end elsewhere is heard of
	if e.latest == nil || len(e.latest) == mostEnds {
		e.latest, e.before = map[lockkey.ID]itemEnd{}, e.latest
	}
	e.latest[id] = end
}

// hear notes an item's end that another worker on the list has announced.
func (e *each) hear(item lockkey.ID, ok bool) { e.ends.add(item, itemEnd{ok: ok}) }
