package runner

import (
	"context"
	"strings"
	"sync"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
)

// endsMost bounds the memory for what others have done: a list may have millions of
// items, and all its workers are about equally far.
const endsMost = 1 << 17

// ends remembers how the latest items ended, here and elsewhere.
type ends struct {
	mu     sync.Mutex
	well   map[lockkey.ID]bool
	latest []lockkey.ID
	next   int
}

func (e *ends) of(id lockkey.ID) (well, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	well, ended = e.well[id]
	return well, ended
}

func (e *ends) add(id lockkey.ID, well bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.well[id]; !known {
		if len(e.latest) < endsMost {
			e.latest = append(e.latest, id)
		} else {
			delete(e.well, e.latest[e.next])
			e.latest[e.next] = id
			e.next = (e.next + 1) % endsMost
		}
	}
	e.well[id] = well
}

// Workers of one list tell each other which items they have run, before they free
// the item's lock.
//
// Channel: pglead.1.each.NUMBER, the number of the key as it was given, braces
// and all. Payload: two fields with a space between them, the number of the
// item's lock and "ok" or "failed". More fields may be added at the end.

func (e *each) channel() string { return "pglead.1.each." + e.cfg.List.String() }

// said is the announcement of an item's end.
func (e *each) said(last *ended) lock.Said {
	return lock.Said{Channel: e.channel(), Payload: last.Lock.String() + " " + map[bool]string{true: "ok", false: "failed"}[last.well]}
}

func (e *each) hear(_ uint32, payload string) {
	fields := strings.Fields(payload)
	if len(fields) < 2 || fields[1] != "ok" && fields[1] != "failed" {
		return
	}
	if id, err := lockkey.Parse(fields[0]); err == nil {
		e.ends.add(id, fields[1] == "ok")
	}
}

// mostHeard is how many items of others this process listens to. Each takes two places
// in the server's table of locks, and all sessions share some thousands of them.
const mostHeard = 64

// bids are the bids for items that others had, in a session that all commands share.
// They are kept, since they hear what becomes of the item.
type bids struct {
	mu   sync.Mutex
	kept map[lockkey.ID]*lock.Bid
}

// of returns the bid that was kept, or nil.
func (bs *bids) of(id lockkey.ID) *lock.Bid {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.kept[id]
}

// keep says whether there is room for what a bid may hear.
func (bs *bids) keep(id lockkey.ID, b *lock.Bid) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.kept[id] == nil && len(bs.kept) >= mostHeard {
		return false
	}
	bs.kept[id] = b
	return true
}

func (bs *bids) drop(ctx context.Context, id lockkey.ID) {
	bs.mu.Lock()
	b := bs.kept[id]
	delete(bs.kept, id)
	bs.mu.Unlock()
	if b != nil {
		_ = b.Forget(ctx) // if it can't be said, the session is lost
	}
}
