package runner

import (
	"sync"

	"github.com/pglead/pglead/lockkey"
)

// mostEnds limits how many ends are remembered. A list may have millions of items, but all its
// workers are in about the same part of it.
const mostEnds = 1 << 17

// itemEnds are how the latest items ended, here and elsewhere, by their names.
type itemEnds struct {
	mu     sync.Mutex
	known  map[lockkey.ID]itemEnd
	latest []lockkey.ID
	next   int
}

// itemEnd is how an item's command ended, the last time.
type itemEnd struct {
	ok   bool
	here bool // this process has run it, then or earlier
}

func (e *itemEnds) of(id lockkey.ID) (end itemEnd, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	end, ended = e.known[id]
	return end, ended
}

func (e *itemEnds) add(id lockkey.ID, end itemEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	earlier, known := e.known[id]
	if !known {
		if len(e.latest) < mostEnds {
			e.latest = append(e.latest, id)
		} else {
			delete(e.known, e.latest[e.next])
			e.latest[e.next] = id
			e.next = (e.next + 1) % mostEnds
		}
	}
	end.here = end.here || earlier.here // also if a later end elsewhere is heard of
	e.known[id] = end
}

// hear notes an item's end that another worker on the list has announced.
func (e *each) hear(item lockkey.ID, ok bool) { e.ends.add(item, itemEnd{ok: ok}) }
