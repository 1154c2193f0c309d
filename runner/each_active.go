package runner

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
)

// activeItem is an item that a worker is at, from the first try for its lock until that is
// released. Its run is its command under that lock.
type activeItem struct {
	Task
	item    string
	log     *slog.Logger // names the item
	attempt *lock.Attempt
	signals chan os.Signal
	run     *run          // has the lock once that is settled
	alive   time.Time     // until then the work on this item is not stuck; under activeItems.mu
	left    chan struct{} // closed when the worker is done with it

	// contested says that others have refused this process the lock, so they may have had it since. An
	// item that was fetched ahead and given back is tried again as by a newcomer.
	contested bool
}

// activeItems are the items that the workers of this process are at.
type activeItems struct {
	mu     sync.Mutex
	byLock map[lockkey.ID]*activeItem
	alive  time.Time // until then the work without an item, the opening of sessions, is not stuck
}

// enter adds an item. If another item here has the same lock, enter returns that one and adds
// nothing: the server would grant the lock to both, since they share a session.
func (a *activeItems) enter(it *activeItem) (other *activeItem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if other := a.byLock[it.ID]; other != nil {
		return other
	}
	a.byLock[it.ID], it.left = it, make(chan struct{})
	return nil
}

func (a *activeItems) leave(it *activeItem) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byLock, it.ID)
	close(it.left)
}

// observer returns an item's observer or, without an item, the list's own. Several items are under
// way at once, so it passes on the latest time that any of them has named: an item that is done
// must not cut short another's.
func (e *each) observer(of *activeItem) lock.Observer {
	o := e.cfg.Lock.Observer
	if alive := o.Alive; alive != nil {
		o.Alive = func(within time.Duration) { e.active.sayAlive(of, within, alive) }
	}
	return o
}

func (a *activeItems) sayAlive(of *activeItem, within time.Duration, alive func(time.Duration)) {
	a.mu.Lock() // also during the call: a later one has to know of this time
	defer a.mu.Unlock()
	until := time.Now().Add(within)
	if of != nil {
		of.alive = until
	} else if until.After(a.alive) {
		a.alive = until
	}
	latest := until
	if a.alive.After(latest) {
		latest = a.alive
	}
	for _, it := range a.byLock {
		if it.alive.After(latest) {
			latest = it.alive
		}
	}
	alive(time.Until(latest))
}

// signal passes a signal on to all commands.
func (a *activeItems) signal(sig os.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, it := range a.byLock {
		select {
		case it.signals <- sig:
		default:
		}
	}
}

// passOnSignals passes signals on to all commands. A signal that asks this process to end also
// ends the list.
func (e *each) passOnSignals(stopped <-chan struct{}) {
	for {
		select {
		case sig := <-e.process.caught:
			if endsPglead(sig.(unix.Signal)) {
				e.cancel(&InterruptedError{Signal: sig.(unix.Signal), OfList: true})
				e.hurry()
			}
			e.active.signal(sig)
		case <-stopped:
			return
		}
	}
}
