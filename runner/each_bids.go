package runner

import (
	"context"
	"sync"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
)

// mostHeard limits the items whose ends this process listens for: each takes two of the
// server's locks, and all sessions share some thousands of those.
const mostHeard = 64

// bids are the bids for items that others held, in the session that all commands share. A bid keeps
// listening until this process comes back to its item.
type bids struct {
	mu   sync.Mutex
	kept map[lockkey.ID]*lock.Bid
}

// of returns the bid for an item, or nil.
func (bs *bids) of(id lockkey.ID) *lock.Bid {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.kept[id]
}

// keep keeps a bid if there is room for it, and says whether it did.
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
		_ = b.Unlisten(ctx) // if it fails, the session is lost or the list has ended
	}
}
