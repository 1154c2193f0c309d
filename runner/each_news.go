package runner

import (
	"context"
	"strings"
	"sync"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// mostEnds limits how many ends are remembered. A list may have millions of items, but all its
// workers are in about the same part of it.
const mostEnds = 1 << 17

// itemEnds are how the latest items ended, here and elsewhere.
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

// Workers on one list tell each other which items they have run, before they free the
// item's lock.
//
// Channel: pglead.1.each.NUMBER, the number of the key as it was given, including {}.
// Payload: two fields separated by a space, the number of the item's lock and "ok"
// or "failed". More fields may be added at the end.

func listChannel(list lockkey.ID) string { return "pglead.1.each." + list.String() }

// saidOfItem is the announcement that the command of a list's item has ended, well or not.
func saidOfItem(list, item lockkey.ID, ok bool) lock.Said {
	end := "failed"
	if ok {
		end = "ok"
	}
	return lock.Said{Channel: listChannel(list), Payload: item.String() + " " + end}
}

// listenToList makes the session's reader call heard with each end of a list's item that another
// session announces from now on. The function must not block.
func listenToList(ctx context.Context, s *session.Session, list lockkey.ID, heard func(item lockkey.ID, ok bool)) error {
	channel := listChannel(list)
	s.OnNotify(channel, func(_ uint32, payload string) {
		fields := strings.Fields(payload)
		if len(fields) < 2 || fields[1] != "ok" && fields[1] != "failed" {
			return
		}
		if item, err := lockkey.Parse(fields[0]); err == nil {
			heard(item, fields[1] == "ok")
		}
	})
	_, err := s.Query(ctx, `LISTEN "`+channel+`"`)
	return session.Rejected(err, "listen for what others on the list run")
}

// said is the announcement of an item's end.
func (e *each) said(last *job) lock.Said {
	return saidOfItem(e.cfg.List, last.ID, last.ok)
}

// hear notes an item's end that was announced.
func (e *each) hear(item lockkey.ID, ok bool) { e.ends.add(item, itemEnd{ok: ok}) }
