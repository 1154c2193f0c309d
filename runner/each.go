package runner

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// EachConfig is a list of tasks, each with its own lock.
type EachConfig struct {
	// Config is what the tasks have in common. Its Hooks and Splay are not used. Each task has its
	// own Claim and Command; only the program is the same.
	Config

	Items    iter.Seq[string]
	Task     func(item string) Task
	Parallel int // how many commands run at once

	// List is the number of the list, which all workers on it have in common.
	List lockkey.ID

	// Progress is called after each change of the tally, by one goroutine at a time.
	Progress func(Tally)
}

// Task is the lock and the command of one item of the list. While a worker is at it, it is a job.
type Task struct {
	Key     string
	ID      lockkey.ID
	Shared  bool
	Command []string
	Env     []string // in addition to Config.Env
}

func (t Task) claim() lock.Claim {
	return lock.Claim{Keys: []string{t.Key}, IDs: []lockkey.ID{t.ID}, Shared: t.Shared}
}

// Tally counts items.
type Tally struct {
	Running int
	Ran     int // Failed included
	Failed  int // ended with a non-zero exit status, by a signal or a timeout, by a loss of the lock or the guard, or was asked to step down
	Held    int // skipped, since somebody else holds their lock
	Paused  int // skipped, since the ledger says so
	// Done were skipped: they were run after this process began, here or elsewhere, or another
	// worker here is at them, or --once-per found them done.
	Done int
}

// Each works on every item that nobody else works on: it takes the item's lock and runs
// the item's command. It skips an item that is held elsewhere, or that another worker on
// the list has run since this session began. With --wait it comes back to items that
// were held, and to items that failed elsewhere, until none is left or the time is up.
//
// One session holds the locks of all commands. With transactions each worker has its
// own session. When a session is lost, Each kills its commands and returns.
func Each(cfg EachConfig) (Tally, error) {
	cfg.Hooks, cfg.Lock.OfList = Hooks{}, true
	p, err := begin(cfg.Config)
	if err != nil {
		return Tally{}, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	patience, hurry := context.WithCancel(context.Background())
	defer hurry()
	e := &each{
		process: p, cfg: cfg, cancel: cancel, hurry: hurry,
		jobs: jobs{active: map[lockkey.ID]*job{}},
		ends: itemEnds{known: map[lockkey.ID]itemEnd{}},
		bids: bids{kept: map[lockkey.ID]*lock.Bid{}},
	}
	stopped := make(chan struct{})
	defer close(stopped)
	go e.relay(stopped)

	if !cfg.Lock.Session.Transaction {
		if e.listSession, err = e.openSession(ctx); err != nil {
			return e.tally, err
		}
		defer e.listSession.Close()
		e.exchanges = make(chan exchangePart)
		defer close(e.exchanges)
		go e.doExchanges()
	}
	e.passes(ctx)
	for _, lost := range e.lost {
		lost.Session.Close() // otherwise the session would keep the locks while their loss is reported
	}
	lock.ReportLostRuns(patience, e.lost...)
	return e.tally, context.Cause(ctx)
}

// each is the work on one list.
type each struct {
	process   *process
	cfg       EachConfig
	cancel    context.CancelCauseFunc
	hurry     context.CancelFunc // called when a signal asks this process to end
	returning bool               // this is a later pass, over items that were skipped before

	jobs jobs
	ends itemEnds
	bids bids

	listSession *session.Session  // the session of all commands; nil with transactions
	exchanges   chan exchangePart // for that session
	describing  sync.Mutex        // while a session's description is replaced

	mu       sync.Mutex
	tally    Tally
	comeBack []string     // items to come back to
	paused   []string     // items to come back to once their pause is over
	lost     []*lock.Held // locks that were lost; their commands are dead
}

// passes goes through all items once, and then again through those that it skipped, while --wait
// allows it.
func (e *each) passes(ctx context.Context) {
	began := time.Now()
	e.pass(ctx, e.cfg.Items)
	for polls := crowd.PollBackoff(); ; {
		left := e.cfg.Lock.Wait - time.Since(began)
		if ctx.Err() != nil || len(e.comeBack)+len(e.paused) == 0 || left <= 0 {
			return
		}
		rest := min(pace.Between(crowd.NextPoll(polls)), left)
		e.cfg.Lock.SayAttemptAfter(rest)
		if !pace.Sleep(ctx, rest) {
			return
		}
		e.returning = true
		e.count(func(t *Tally) { t.Held, t.Paused = 0, 0 })
		again := e.comeBack
		e.comeBack = nil
		if again = append(again, e.resumed(ctx)...); len(again) > 0 {
			e.pass(ctx, slices.Values(again))
		}
	}
}

// pass goes through the items once.
func (e *each) pass(ctx context.Context, items iter.Seq[string]) {
	queue := make(chan string)
	var workers sync.WaitGroup
	for range e.cfg.Parallel {
		workers.Go(func() {
			if err := e.runWorker(ctx, queue); err != nil {
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
}

// workingSession returns the session of all commands. With transactions it opens a new session,
// which leave closes.
func (e *each) workingSession(ctx context.Context) (s *session.Session, leave func(), err error) {
	if e.listSession != nil {
		return e.listSession, func() {}, nil
	}
	if s, err = e.openSession(ctx); err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

// runWorker opens the session of one worker, if it needs its own, and returns at the end of the
// worker's loop.
func (e *each) runWorker(ctx context.Context, queue <-chan string) error {
	s, leave, err := e.workingSession(ctx)
	if err != nil {
		return err
	}
	defer leave()
	w := &worker{each: e, session: s, queue: queue}
	return w.loop(ctx)
}

// bidFor returns the bid for an item. A bid that was refused before is used again, since it has
// listened in the meantime. Through a pooler nobody can listen, so each bid is a new one.
func (e *each) bidFor(j *job) *lock.Bid {
	if b := e.bids.of(j.ID); b != nil {
		return b
	}
	cfg := e.cfg.Lock
	cfg.Claim = j.claim()
	cfg.Log, cfg.Observer = j.log, e.observer(j.ID)
	cfg.Show = func(delay time.Duration) { e.show(j.session, j.ID, delay) }
	return lock.NewBid(j.session, cfg, e.returning) // on a later pass it knows nothing: nobody here has listened since the last one
}

// show notes how long an item's lock is held before its command may start, and describes the
// session anew.
func (e *each) show(s *session.Session, id lockkey.ID, delay time.Duration) {
	e.jobs.setDelay(id, delay)
	e.describe(s)
}

// describe puts into a session's description the current keys and the longest delay under way
// there. Whoever sees that the session is silent waits for that, too.
func (e *each) describe(s *session.Session) {
	e.describing.Lock() // so that no older description replaces a later one
	defer e.describing.Unlock()
	d := e.cfg.Lock.Describe()
	d.Since = time.Now()
	d.Keys, d.Delay = e.jobs.shown(s)
	s.SetComment(d.Comment())
}

func (e *each) count(change func(*Tally)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.tally)
	e.cfg.Progress(e.tally)
}
