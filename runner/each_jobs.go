package runner

import (
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
)

// job is an item that a worker is at.
type job struct {
	Task
	item    string
	log     *slog.Logger // names the item
	worker  *worker
	attempt *lock.Attempt
	held    *lock.Held // once the lock is settled
	signals chan os.Signal
	run     *run      // once the command has ended, until the lock is released
	alive   time.Time // until then the work on this item is not stuck; under jobs.mu
}

// jobs are the items that the workers of this process are at, by the number of the lock.
type jobs struct {
	mu     sync.Mutex
	active map[lockkey.ID]*job
	alive  time.Time // until then the work without an item, the opening of sessions, is not stuck
}

// enter adds a job. If another job here has the same lock, enter returns that job and adds
// nothing: the server would grant the lock to both, since they share a session.
func (js *jobs) enter(j *job) (other *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if other := js.active[j.ID]; other != nil {
		return other
	}
	js.active[j.ID] = j
	return nil
}

func (js *jobs) leave(j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	delete(js.active, j.ID)
}

// observer returns an item's observer or, without an item, the list's own. Several items are under
// way at once, so it passes on the latest time that any of them has named: an item that is done
// must not cut short another's.
func (e *each) observer(of ...lockkey.ID) lock.Observer {
	o := e.cfg.Lock.Observer
	if alive := o.Alive; alive != nil {
		o.Alive = func(within time.Duration) { e.jobs.sayAlive(of, within, alive) }
	}
	return o
}

func (js *jobs) sayAlive(of []lockkey.ID, within time.Duration, alive func(time.Duration)) {
	js.mu.Lock() // also during the call: a later one has to know of this time
	defer js.mu.Unlock()
	until := time.Now().Add(within)
	if len(of) == 0 && until.After(js.alive) {
		js.alive = until
	}
	latest := until
	if js.alive.After(latest) {
		latest = js.alive
	}
	for id, j := range js.active {
		if slices.Contains(of, id) {
			j.alive = until
		} else if j.alive.After(latest) {
			latest = j.alive
		}
	}
	alive(time.Until(latest))
}

// signal passes a signal on to all commands.
func (js *jobs) signal(sig os.Signal) {
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, j := range js.active {
		select {
		case j.signals <- sig:
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
			if interrupts(sig.(unix.Signal)) {
				e.cancel(&InterruptedError{Signal: sig.(unix.Signal), OfList: true})
				e.stopReport()
			}
			e.jobs.signal(sig)
		case <-stopped:
			return
		}
	}
}
