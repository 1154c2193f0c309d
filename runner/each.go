package runner

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
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

// Task is the lock and the command of one item of the list.
type Task struct {
	Key     string
	ID      lockkey.ID
	Shared  bool
	Command []string
	Env     []string // in addition to Config.Env
}

// name is by what workers on the list tell tasks apart. Two may have the same lock: under some
// schemes two keys have one number.
func (t Task) name() lockkey.ID { return lockkey.SipHash24(t.Key) }

func (t Task) claim() lock.Claim {
	return lock.Claim{Keys: []string{t.Key}, IDs: []lockkey.ID{t.ID}, Shared: t.Shared}
}

// Tally counts items.
type Tally struct {
	Running int
	Ran     int // Failed included
	Failed  int // ended with a non-zero exit status, by a signal or a timeout, by a loss of the lock or the guard, or was asked to end or to step down
	Held    int // skipped, since somebody else holds their lock
	Paused  int // skipped, since the ledger says so
	// Hindered counts items that were skipped because of an obstacle that may pass, such as a
	// ledger whose disk is full.
	Hindered int
	// Done counts items that were skipped as done: they were run here since this process began, or
	// elsewhere since its session did, a worker here is at the same item, or --once-per found a
	// success.
	Done int
}

// ComeBack is the number of items to which the list comes back if there is time.
func (t Tally) ComeBack() int { return t.Held + t.Paused + t.Hindered }

// Skipped is the number of items that are not run, or not yet.
func (t Tally) Skipped() int { return t.Done + t.ComeBack() }

// Each works on every item that nobody else works on: it takes the item's lock and runs
// the item's command. It skips an item that is held elsewhere, or that another worker on
// the list has run since this session began. With --wait it comes back to items that
// were held, paused or hindered, and to those that failed elsewhere, until none is left or the time
// is up.
//
// One session holds the locks of all commands. With transactions each worker has its
// own session. When a session is lost, Each kills its commands and returns.
func Each(cfg EachConfig) (Tally, error) {
	cfg.Hooks = Hooks{}
	p, err := newProcess(cfg.Stdin)
	if err != nil {
		return Tally{}, err
	}
	return p.workOn(cfg)
}

// workOn works on a list, as Each describes it.
func (p *process) workOn(cfg EachConfig) (tally Tally, err error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	hurried, hurry := context.WithCancel(context.Background())
	defer hurry()
	e := &each{
		process: p, cfg: cfg, cancel: cancel, hurry: hurry, warned: map[[2]string]bool{},
		active: activeItems{byLock: map[lockkey.ID]*activeItem{}},
	}
	stopped := make(chan struct{})
	defer close(stopped)
	go e.passOnSignals(stopped)

	if !cfg.Lock.Session.Transaction {
		if e.common, err = e.openList(ctx); err != nil {
			return e.tally, err
		}
		defer e.common.Close()
	}
	e.passes(ctx)
	for _, h := range e.lostLocks {
		h.Session.Close() // otherwise the session would keep the locks while their loss is reported
	}
	if hurried.Err() != nil { // a signal came before the report: see run.untilSignal
		var stop context.CancelFunc
		hurried, stop = context.WithTimeoutCause(context.Background(), lock.PatienceAtEnd, lock.ErrNoAnswer)
		defer stop()
	}
	lock.ReportLost(hurried, e.lostLocks...)
	err = e.reason(ctx)
	if loss := (*LockLostError)(nil); errors.As(err, &loss) {
		// It is about all commands; logEnd has said what was done to each.
		err = &LockLostError{Database: loss.Database, Cause: loss.Cause, SilentFor: loss.SilentFor}
	}
	return e.tally, err
}

// each is the work on one list.
type each struct {
	process   *process
	cfg       EachConfig
	cancel    context.CancelCauseFunc
	hurry     context.CancelFunc // ends the report of losses: called when a signal asks this process to end
	returning bool               // this is a later pass, over items that were skipped before

	active activeItems
	ends   itemEnds
	common *lock.List // of all workers; nil with transactions

	mu        sync.Mutex // guards all that follows while workers run
	tally     Tally
	comeBack  []string           // items to come back to
	paused    []string           // items to come back to once their pause is over
	lostLocks []*lock.Held       // their commands are dead
	warned    map[[2]string]bool // the items and events of warnOnce
}

// end ends the list with the error of one worker.
func (e *each) end(err error) { e.cancel(&endOfList{err}) }

// endOfList is the error of all other workers then. It doesn't wrap the error of the first: that
// one is about the first worker's item, not about theirs.
type endOfList struct{ reason error }

func (e *endOfList) Error() string { return "the list has ended: " + e.reason.Error() }

// reason is why the list has ended, or nil.
func (e *each) reason(ctx context.Context) error {
	err := context.Cause(ctx)
	if end := (*endOfList)(nil); errors.As(err, &end) {
		return end.reason
	}
	return err
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
		e.cfg.Lock.SayTrying(rest)
		if !pace.Sleep(ctx, rest) {
			return
		}
		e.returning = true
		e.count(func(t *Tally) { t.Held, t.Paused, t.Hindered = 0, 0, 0 })
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
				e.end(err)
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

// openList opens a session for the list.
func (e *each) openList(ctx context.Context) (*lock.List, error) {
	cfg := e.cfg.Lock
	cfg.Observer = e.observer(nil)
	return lock.OpenList(ctx, cfg, e.cfg.List, e.hear)
}

// workingList returns the list of all workers. With transactions it opens a new session, which
// leave closes.
func (e *each) workingList(ctx context.Context) (l *lock.List, leave func(), err error) {
	if e.common != nil {
		return e.common, func() {}, nil
	}
	if l, err = e.openList(ctx); err != nil {
		return nil, nil, err
	}
	return l, l.Close, nil
}

// runWorker opens the session of one worker, if it needs its own, and returns at the end of the
// worker's loop.
func (e *each) runWorker(ctx context.Context, queue <-chan string) error {
	l, leave, err := e.workingList(ctx)
	if err != nil {
		return err
	}
	defer leave()
	w := &worker{each: e, list: l, queue: queue}
	return w.loop(ctx)
}

func (e *each) count(change func(*Tally)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.tally)
	e.cfg.Progress(e.tally)
}
