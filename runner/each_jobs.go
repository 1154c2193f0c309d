package runner

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// job is an item that a worker is at, with the channels to its command's supervision.
type job struct {
	Task
	item    string
	log     *slog.Logger // names the item
	worker  *worker
	session *session.Session
	bid     *lock.Bid
	held    *lock.Held // from the grant on
	signals chan os.Signal
	renewed chan boottime.Instant
	// Once the command has ended, until the lock is released:
	run *run
	ok  bool
	// Under jobs.mu:
	watched bool          // the heartbeat looks for requests to step down
	alive   time.Time     // until then the work on this item is not stuck
	delay   time.Duration // for which its lock is held before its command may start
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
	if j.watched {
		js.watchForStepDown(j)
	}
}

// watchAfter is how long a command runs before requests that it step down are looked for, and its
// key is shown. A brief command is over sooner, and so costs the server nothing.
const watchAfter = crowd.FirstBeat

// watch makes the heartbeat of a job's session look for requests that the job step down, until the
// job leaves.
func (js *jobs) watch(j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.active[j.ID] == j {
		j.watched = true
		js.watchForStepDown(j)
		j.session.BeatAt(boottime.Now()) // the heartbeat's comment shows the keys
	}
}

// watchForStepDown makes the heartbeat of a job's session look for requests to all of its jobs
// that are watched for that. The caller holds mu.
func (js *jobs) watchForStepDown(of *job) {
	var held []*lock.Held
	for _, j := range js.active {
		if j.session == of.session && j.watched {
			held = append(held, j.held)
		}
	}
	lock.WatchListForStepDown(of.session, held)
}

// renew passes a session's deadline on to the commands under it.
func (js *jobs) renew(s *session.Session, deadline boottime.Instant) {
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, j := range js.active {
		if j.session != s {
			continue
		}
		select {
		case <-j.renewed: // an older one
		default:
		}
		j.renewed <- deadline
	}
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

// setDelay notes how long an item's lock is held before its command may start.
func (js *jobs) setDelay(id lockkey.ID, delay time.Duration) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if j := js.active[id]; j != nil {
		j.delay = delay
	}
}

// shown are the current keys in a session, up to a maximum, and the longest delay there.
func (js *jobs) shown(s *session.Session) (keys []string, delay time.Duration) {
	const most = 8 // the server cuts off what is too long
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, j := range js.active {
		if j.session != s {
			continue
		}
		delay = max(delay, j.delay)
		if len(keys) < most {
			keys = append(keys, j.Key)
		}
	}
	return keys, delay
}

// relay passes signals on to all commands. A signal that asks this process to end also
// ends the list.
func (e *each) relay(stopped <-chan struct{}) {
	for {
		select {
		case sig := <-e.process.caught:
			if child.Interrupts(sig.(unix.Signal)) {
				e.cancel(&InterruptedError{Signal: sig.(unix.Signal), OfList: true})
				e.hurry()
			}
			e.jobs.signal(sig)
		case <-stopped:
			return
		}
	}
}

// openSession opens a session, and passes its deadlines on to its commands until the session ends.
func (e *each) openSession(ctx context.Context) (*session.Session, error) {
	cfg := e.cfg.Lock
	cfg.Observer = e.observer()
	s, err := lock.NewCandidate(cfg).Open(ctx, func(s *session.Session) error {
		if e.cfg.Lock.Session.Transaction {
			return nil
		}
		return lock.ListenToList(ctx, s, e.cfg.List, e.hear)
	})
	if err != nil {
		return nil, err
	}
	s.StartHeartbeat()
	go func() {
		for {
			select {
			case deadline := <-s.Renewed():
				e.jobs.renew(s, deadline)
			case <-s.Lost():
				return
			}
		}
	}()
	return s, nil
}
