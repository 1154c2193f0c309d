package runner

import (
	"context"
	"errors"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// EachConfig is a list of tasks, each with a lock of its own.
type EachConfig struct {
	// Config is what the tasks have in common: Keys, Claim and all of Command
	// but its program are each task's own.
	Config

	Items    iter.Seq[string]
	Task     func(item string) Task
	Parallel int // how many commands run at once

	// List is the number by which those who work on one list know each other.
	List lockkey.ID

	// Progress is told of every change, by one goroutine at a time.
	Progress func(Tally)
}

// Task is one item's.
type Task struct {
	Key     string
	Lock    lock.Lock
	Command []string
	Env     []string // beside that of all
}

// Tally counts items.
type Tally struct {
	Running int
	Ran     int // Failed included
	Failed  int // ended with another exit status than 0, by a signal, or by a timeout
	Held    int // skipped, since someone else holds their lock
	Done    int // skipped, since someone else has worked on them since this process began, or it has itself
}

// Each works on every item that nobody else works on: it takes the item's lock
// and runs the item's command. An item that is held elsewhere is skipped, and
// so is one that another of the same list has been at since this one began.
// With cfg.Wait it comes back to those that were held, and to those that
// failed elsewhere, until none is left or the time is up.
//
// Locks are held by one session that all commands share, but with transactions,
// of which each holder needs its own. When a session is lost all commands are
// killed, and that is the end.
func Each(cfg EachConfig) (Tally, error) {
	signals, err := cfg.begin()
	if err != nil {
		return Tally{}, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	patience, hurry := context.WithCancel(context.Background())
	defer hurry()
	e := &each{
		cfg: cfg, cancel: cancel, patience: patience, hurry: hurry, stopped: make(chan struct{}),
		active: map[lockkey.ID]*hearing{}, ends: newEnds(), bids: map[lockkey.ID]*lock.Bid{},
	}
	go e.relay(signals)
	defer close(e.stopped)

	var shared *connection
	if !cfg.Session.Transaction {
		if shared, err = e.open(ctx); err != nil {
			return e.tally, err
		}
		defer shared.close()
	}
	began := time.Now()
	items := cfg.Items
	for polls := lock.Polls(); ; {
		again := e.pass(ctx, shared, items)
		left := cfg.Wait - time.Since(began)
		least := polls.Next()
		if ctx.Err() != nil || len(again) == 0 || left <= 0 || !pace.Sleep(ctx, min(pace.Between(least, 3*least), left)) {
			break
		}
		items = slices.Values(again)
		e.returning = true
		e.count(func(t *Tally) { t.Held = 0 })
	}
	for _, lost := range e.lost {
		lost.Session.Close() // or it would keep the locks for as long as that takes
	}
	lock.LastWords(e.patience, e.lost...)
	return e.tally, context.Cause(ctx)
}

// each is a list at work.
type each struct {
	cfg       EachConfig
	cancel    context.CancelCauseFunc
	patience  context.Context // ends when a signal asks this process to end, and with nothing else
	hurry     context.CancelFunc
	stopped   chan struct{}
	returning bool // to items that were skipped before

	mu     sync.Mutex
	tally  Tally
	active map[lockkey.ID]*hearing
	ends   *ends
	lost   []*lock.Held
	bids   map[lockkey.ID]*lock.Bid // for what others had, in a session that all share
	again  []string
}

// connection is a session, and those who have to hear of its deadline.
type connection struct {
	*session.Session
	done chan struct{}
}

// hearing is the events of one command.
type hearing struct {
	on      *session.Session
	key     string
	signals chan os.Signal
	renewed chan time.Duration
}

func (e *each) open(ctx context.Context) (*connection, error) {
	var s *session.Session
	locking := e.cfg.locking()
	err := locking.Persist(ctx, func(left func() time.Duration) (err error) {
		s, err = locking.Open(ctx, left())
		if err == nil && !e.cfg.Session.Transaction {
			s.OnNotify(e.channel(), e.hear)
			if _, err = s.Query(ctx, `LISTEN "`+e.channel()+`"`); err != nil {
				s.Close()
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.Keep()
	c := &connection{s, make(chan struct{})}
	go func() {
		for {
			select {
			case deadline := <-s.Renewed():
				e.renew(s, deadline)
			case <-c.done:
				return
			}
		}
	}()
	return c, nil
}

func (c *connection) close() {
	close(c.done)
	c.Close()
}

// renew passes a session's deadline on to the commands under it.
func (e *each) renew(s *session.Session, deadline time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.active {
		if h.on != s {
			continue
		}
		select {
		case <-h.renewed: // an older one
		default:
		}
		h.renewed <- deadline
	}
}

// relay passes signals on to all commands; one that asks this process to end
// ends the list.
func (e *each) relay(signals <-chan os.Signal) {
	for {
		select {
		case sig := <-signals:
			if child.Interrupts(sig.(unix.Signal)) {
				e.cancel(&InterruptedError{Signal: sig.(unix.Signal)})
				e.hurry()
			}
			e.mu.Lock()
			for _, h := range e.active {
				select {
				case h.signals <- sig:
				default:
				}
			}
			e.mu.Unlock()
		case <-e.stopped:
			return
		}
	}
}

// pass goes through the items once and returns those to come back to.
func (e *each) pass(ctx context.Context, shared *connection, items iter.Seq[string]) []string {
	e.again = nil
	queue := make(chan string)
	var workers sync.WaitGroup
	for range e.cfg.Parallel {
		workers.Go(func() {
			if err := e.work(ctx, shared, queue); err != nil {
				e.cancel(err)
			}
		})
	}
	for item := range items {
		select {
		case queue <- item:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(queue)
	workers.Wait()
	return e.again
}

func (e *each) work(ctx context.Context, on *connection, queue <-chan string) error {
	if e.cfg.Session.Transaction {
		own, err := e.open(ctx)
		if err != nil {
			return err
		}
		defer own.close()
		on = own
	}
	for item := range queue {
		if ctx.Err() != nil {
			return nil
		}
		if err := e.one(ctx, on.Session, item); err != nil {
			return err
		}
	}
	return nil
}

// one does what there is to do for an item.
func (e *each) one(ctx context.Context, s *session.Session, item string) error {
	cfg, task := e.cfg.Config, e.cfg.Task(item)
	cfg.Keys = []string{task.Key}
	locking := cfg.locking()
	cfg.Watch.alive(locking.AttemptMost())
	id := task.Lock.ID
	h := &hearing{on: s, key: task.Key, signals: make(chan os.Signal, 64), renewed: make(chan time.Duration, 1)}
	// To the server one session is one holder, however many commands it has.
	if !e.enter(id, h) {
		e.skip(item, false)
		return nil
	}
	defer e.leave(id)
	if e.settled(item, id) {
		return nil
	}
	b := e.bid(s, locking, task.Lock)
	granted, err := b.Try(ctx)
	if err != nil {
		return err
	}
	if !granted {
		e.skip(item, false)
		if cfg.Wait == 0 || cfg.Session.Transaction {
			return nil
		}
		// From now on it is known, when this one comes back, whether the lock's
		// last holder is dead.
		if !e.keep(id, b) {
			return nil // when it comes back, it waits out the lock-delay
		}
		return b.Listen(ctx)
	}
	// What ended between the first look and the grant has been heard by now.
	if e.settled(item, id) {
		return b.GiveBack(ctx)
	}
	defer e.drop(context.WithoutCancel(ctx), id)
	cfg.Command, cfg.Env = task.Command, append(slices.Clone(cfg.Env), task.Env...)
	cfg.Log = cfg.Log.With("item", item)
	cfg.ending = func(o Outcome) { e.end(ctx, s, id, !o.failed()) }
	var t tenure
	if t.guard, err = cfg.guardFor(s); err != nil {
		return err
	}
	t.Held, err = b.Settle(ctx)
	if err != nil {
		t.guard.Close()
		if s.Err() == nil { // others still work in this session
			_ = b.GiveBack(context.WithoutCancel(ctx))
		}
		return e.barred(item, s, err)
	}
	e.describe(s)
	e.count(func(t *Tally) { t.Running++ })
	outcome, err := t.run(ctx, cfg, events{signals: h.signals, renewed: h.renewed})
	if errors.As(err, new(*LostError)) {
		e.mu.Lock()
		e.lost = append(e.lost, t.Held)
		e.mu.Unlock()
	}
	if err == nil && outcome.failed() && !outcome.TimedOut { // which has been said
		cfg.Log.Warn("the command failed: "+describeStatus(outcome.Status), "event", "failed")
	}
	e.count(func(t *Tally) {
		t.Running--
		if err == nil {
			t.Ran++
			if outcome.failed() {
				t.Failed++
			}
		}
	})
	return err
}

// bid is the one for an item, which may have been refused before. One that was
// returns with what it has heard since; through a pooler nothing is heard.
func (e *each) bid(s *session.Session, locking lock.Config, of lock.Lock) *lock.Bid {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b := e.bids[of.ID]; b != nil {
		return b
	}
	locking.Claim = lock.Claim{Locks: []lock.Lock{of}, Polled: true}
	locking.Returns = e.returning // with nothing heard of it since
	return lock.NewBid(s, locking)
}

// mostHeard is of how many items that others have it is heard how they end: each
// takes two of the server's locks, of which all of its sessions share some thousands.
const mostHeard = 64

// keep says whether what happens to an item may be listened to.
func (e *each) keep(id lockkey.ID, b *lock.Bid) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bids[id] == nil && len(e.bids) >= mostHeard {
		return false
	}
	e.bids[id] = b
	return true
}

func (e *each) drop(ctx context.Context, id lockkey.ID) {
	e.mu.Lock()
	b := e.bids[id]
	delete(e.bids, id)
	e.mu.Unlock()
	if b != nil {
		_ = b.Forget(ctx) // if it can't be said, the session is lost
	}
}

// failed says that a command did not do its work.
func (o Outcome) failed() bool {
	return o.TimedOut || o.Status.Signaled() || o.Status.ExitStatus() != 0
}

func (e *each) count(change func(*Tally)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.tally)
	e.cfg.Progress(e.tally)
}

func (e *each) enter(id lockkey.ID, h *hearing) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.active[id] != nil {
		return false
	}
	e.active[id] = h
	return true
}

func (e *each) leave(id lockkey.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.active, id)
}

// describe has a session say which items it is at.
func (e *each) describe(s *session.Session) {
	const most = 8 // the server cuts off what is too long
	d := e.cfg.Description
	d.Keys, d.Since = nil, time.Now()
	e.mu.Lock()
	for _, h := range e.active {
		if h.on == s && len(d.Keys) < most {
			d.Keys = append(d.Keys, h.key)
		}
	}
	e.mu.Unlock()
	s.SetComment(d.Comment())
}

// skip counts an item that somebody else works on, or has been at.
func (e *each) skip(item string, done bool) {
	e.count(func(t *Tally) {
		if done {
			t.Done++
			return
		}
		t.Held++
		if e.cfg.Wait > 0 {
			e.again = append(e.again, item)
		}
	})
}

// settled skips an item that somebody has been at since this process began.
// One that failed there is one to come back to, if there is time.
func (e *each) settled(item string, id lockkey.ID) bool {
	e.mu.Lock()
	well, ended := e.ends.of(id)
	e.mu.Unlock()
	if !ended || !well && e.returning {
		return false
	}
	e.skip(item, well || e.cfg.Wait == 0)
	return true
}

// Those who work on one list tell each other which items they have been at,
// before they free the item's lock.
//
// Channel: pglead.1.each.NUMBER, the number of the key as it was given, braces
// and all. Payload: two fields with a space between them, the number of the
// item's lock and "ok" or "failed". More fields may be added at the end.

func (e *each) channel() string { return "pglead.1.each." + e.cfg.List.String() }

func (e *each) end(ctx context.Context, s *session.Session, id lockkey.ID, well bool) {
	e.mu.Lock()
	e.ends.add(id, well)
	e.mu.Unlock()
	if !e.cfg.Session.Transaction {
		// If it can't be said, the session is lost, or somebody does it again.
		_ = lock.Tell(context.WithoutCancel(ctx), s, e.channel(), id.String()+" "+map[bool]string{true: "ok", false: "failed"}[well])
	}
}

func (e *each) hear(_ uint32, payload string) {
	fields := strings.Fields(payload)
	if len(fields) < 2 || fields[1] != "ok" && fields[1] != "failed" {
		return
	}
	id, err := lockkey.Parse(fields[0])
	if err != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends.add(id, fields[1] == "ok")
}

// endsMost bounds the memory for what others have done: a list may have
// millions of items, and those who work on it are about equally far.
const endsMost = 1 << 17

// ends remembers how the latest items ended.
type ends struct {
	well   map[lockkey.ID]bool
	latest []lockkey.ID
	next   int
}

func newEnds() *ends { return &ends{well: map[lockkey.ID]bool{}} }

func (e *ends) of(id lockkey.ID) (well, ended bool) {
	well, ended = e.well[id]
	return well, ended
}

func (e *ends) add(id lockkey.ID, well bool) {
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
