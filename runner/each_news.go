package runner

import (
	"strings"
	"sync"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
)

// endsMost limits how many ends are remembered. A list may have millions of items, but all its
// workers are in about the same part of it.
const endsMost = 1 << 17

// endsHeard remembers how the latest items ended, here and elsewhere.
type endsHeard struct {
	mu     sync.Mutex
	known  map[lockkey.ID]knownEnd
	latest []lockkey.ID
	next   int
}

// knownEnd is how an item's command ended, the last time.
type knownEnd struct {
	well bool
	here bool // this process has run it, then or earlier
}

func (e *endsHeard) of(id lockkey.ID) (end knownEnd, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	end, ended = e.known[id]
	return end, ended
}

func (e *endsHeard) add(id lockkey.ID, end knownEnd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	earlier, known := e.known[id]
	if !known {
		if len(e.latest) < endsMost {
			e.latest = append(e.latest, id)
		} else {
			delete(e.known, e.latest[e.next])
			e.latest[e.next] = id
			e.next = (e.next + 1) % endsMost
		}
	}
	end.here = end.here || earlier.here // this session hears its own announcements, too
	e.known[id] = end
}

// Workers on one list tell each other which items they have run, before they free the
// item's lock.
//
// Channel: pglead.1.each.NUMBER, the number of the key as it was given, including {}.
// Payload: two fields separated by a space, the number of the item's lock and "ok"
// or "failed". More fields may be added at the end.

func (e *each) channel() string { return "pglead.1.each." + e.cfg.List.String() }

// said is the announcement of an item's end.
func (e *each) said(last *finishedItem) lock.Said {
	end := "failed"
	if last.well {
		end = "ok"
	}
	return lock.Said{Channel: e.channel(), Payload: last.Lock.String() + " " + end}
}

func (e *each) hear(_ uint32, payload string) {
	fields := strings.Fields(payload)
	if len(fields) < 2 || fields[1] != "ok" && fields[1] != "failed" {
		return
	}
	if id, err := lockkey.Parse(fields[0]); err == nil {
		e.ends.add(id, knownEnd{well: fields[1] == "ok"})
	}
}
