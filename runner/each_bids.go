package runner

import (
	"context"
	"sync"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
)

// mostHeard is the most items of others to whose ends this process listens: each
// takes two of the server's locks, of which all of its sessions share some thousands.
const mostHeard = 64

// bids are those for items that others had, in a session that all commands share.
// They are kept with what they have heard since.
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
		_ = b.Unlisten(ctx) // if it can't be said, the session is lost
	}
}
