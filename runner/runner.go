// Package runner is where lock and command meet: Run takes the lock, starts
// the command, and sees to it that the command is dead before the lock is
// anybody else's.
package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// Config is one run.
type Config struct {
	Keys  []string // what the command gets to know about Claim
	Claim lock.Claim

	Session session.Config // LostGrace included
	Wait    time.Duration  // for the lock: 0 tries once, Forever has no end

	// Splay is the most that Run waits, at random, before the first try: else the
	// fastest node does all the work.
	Splay time.Duration

	// LockDelay is how long a former holder may live on without knowing that
	// it has lost: so long is waited, with the lock held, where its end is not
	// known to be clean. See package lock.
	LockDelay time.Duration

	Path    string // of the command, from child.Lookup
	Command []string
	Env     []string // the command's, to which the PGLEAD_LOCK_… are added
	Stdin   *os.File // the command's; nil is this process's own

	Timeout          time.Duration // 0: none
	KillAfterTimeout time.Duration // from the SIGTERM of Timeout to SIGKILL
	KillAfterSignal  time.Duration // from a forwarded signal to SIGKILL; 0: never
	WaitForLeftovers bool

	// MinHold is how long the lock is held from the command's start on, even
	// if the command ends before.
	MinHold time.Duration

	// Ledger is what remembers the run, if the database has one.
	Ledger ledger.Use

	// Explain has a refusal say who holds the lock, which is one more question
	// to the server.
	Explain bool

	Watch Watch
	Hooks Hooks
	Log   *slog.Logger

	parting bool // this process ends with the run
	// reached is set once the server has answered for the lock. Who has it
	// rides out every error from then on.
	reached  *bool
	guards   *child.Guards
	catching <-chan struct{} // is closed when signals for the command are caught
	hooks    *sync.WaitGroup // those that run
	ending   func(Outcome)   // is called before the lock of a command that ended is given back
}

// LevelNotice is that of taking and giving back the lock: between warning and
// info, as syslog's notice is.
const LevelNotice = slog.LevelInfo + 2

// Outcome is the end of a command that ran.
type Outcome struct {
	Status      unix.WaitStatus
	Ran         time.Duration
	TimedOut    bool
	Interrupted bool // this process was asked to end while the command ran
	SteppedDown bool // it was asked to give the lock back
}

// InterruptedError says that a signal came before the command started.
type InterruptedError struct{ Signal unix.Signal }

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("interrupted by %s before the command started", unix.SignalName(e.Signal))
}

// LostError says that the lock was lost while the command ran, and that the
// command is dead.
type LostError struct {
	Database string
	Cause    error
	Heard    time.Duration // how long before the loss the lock was last known held
	What     string        // what was done about it
}

func (e *LostError) Error() string {
	heard := ""
	if e.Heard > 0 {
		heard = fmt.Sprintf(" (last known held %v before)", e.Heard.Round(time.Millisecond))
	}
	return fmt.Sprintf("the lock in %s was lost%s: %v; %s", e.Database, heard, e.Cause, e.What)
}

func (e *LostError) Unwrap() error { return e.Cause }

// GuardDiedError says that the guard process was killed, and that the command
// was killed for that.
type GuardDiedError struct{ Killed int }

func (e *GuardDiedError) Error() string {
	return "the guard process died; the command and what it had started were killed"
}

// Run takes the lock, runs the command, and returns when every process of it
// is dead and the lock is given back. The command is started only while the
// server grants the lock. Errors are of the types above, *child.LookupError,
// or *session.Error.
func Run(cfg Config) (Outcome, error) {
	signals, err := cfg.begin()
	if err != nil {
		return Outcome{}, err
	}
	defer cfg.hooks.Wait()
	cfg.parting = true
	if err := rest(cfg, signals, pace.Between(0, cfg.Splay)); err != nil {
		return Outcome{}, err
	}
	return once(cfg, signals)
}

// begin is what this process does before it supervises anything.
func (cfg *Config) begin() (signals <-chan os.Signal, err error) {
	if cfg.guards, err = child.NewGuards(); err != nil {
		return nil, err
	}
	cfg.guards.Stdin = cfg.Stdin
	child.ReapOrphans()
	signals, cfg.catching = child.Signals()
	cfg.hooks = &sync.WaitGroup{}
	return signals, nil
}

// locking is what the lock needs to know of a run.
func (cfg Config) locking() lock.Config {
	return lock.Config{
		Claim: cfg.Claim, Session: cfg.Session, Wait: cfg.Wait, LockDelay: cfg.LockDelay,
		Explain: cfg.Explain, Parting: cfg.parting, Reached: cfg.reached, Observer: cfg.Watch.Observer, Log: cfg.Log,
		Ledger: cfg.ledger(),
	}
}

// tenure is what a command runs under: the locks, and the guard that holds on to
// their session's socket.
type tenure struct {
	*lock.Held
	guard *child.Guard
}

// guardFor starts the guard of a command, while there is something else to wait
// for.
func (cfg Config) guardFor(s *session.Session) (*child.Guard, error) {
	socket, ok := s.Conn().(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("the lock's connection (%T) has no descriptor for the guard", s.Conn())
	}
	return cfg.guards.New(socket)
}

// once takes the lock, runs the command one time, and gives the lock back.
func once(cfg Config, signals <-chan os.Signal) (Outcome, error) {
	ctx, early := interruptible(signals)
	defer early.handOver()
	var t tenure
	locking := cfg.locking()
	locking.Opened = func(s *session.Session) (abandon func(), err error) {
		t.guard, err = cfg.guardFor(s)
		guard := t.guard
		return func() {
			if guard != nil {
				guard.Close()
			}
		}, err
	}
	held, err := lock.Acquire(ctx, locking)
	if err != nil {
		return Outcome{}, err
	}
	t.Held = held
	defer held.Close()
	outcome, err := t.run(ctx, cfg, events{signals: signals, renewed: held.Session.Renewed(), early: early})
	if errors.As(err, new(*LostError)) {
		ctx, early := interruptible(signals)
		defer early.handOver()
		held.Close() // or it would keep the lock for as long as that takes
		lock.LastWords(ctx, held)
	}
	return outcome, err
}

// run runs the command under the lock and gives the lock back, unless ctx has
// ended before.
func (t *tenure) run(ctx context.Context, cfg Config, ev events) (Outcome, error) {
	s := t.Session
	log := cfg.Log.With("token", t.Token)
	log.Log(ctx, LevelNotice, "lock acquired", append([]any{"event", "acquired", "backend_pid", s.BackendPID()}, t.describe()...)...)
	t.hook(log, cfg, "acquired", cfg.Hooks.Acquired, nil)
	if ev.early != nil {
		ev.early.starting.Store(true)
	}
	if ctx.Err() != nil {
		t.guard.Close()
		t.release(log, cfg, Outcome{})
		return Outcome{}, context.Cause(ctx)
	}
	<-cfg.catching
	if err := s.Err(); err != nil {
		t.guard.Close()
		return Outcome{}, err
	}
	asked := time.Now()
	words, goodbye := t.LastBytes()
	c, err := t.guard.Start(ctx, child.Config{
		Path: cfg.Path, Args: cfg.Command, Env: environment(cfg, t),
		Deadline: s.Deadline(), WaitForLeftovers: cfg.WaitForLeftovers,
		LostGrace: cfg.Session.LostGrace, LeaseGrace: leaseGrace(cfg.Session.Lease),
		GuardPatience: guardPatience(cfg.Session.Lease),
		LastWords:     words, Goodbye: goodbye,
	})
	if err != nil {
		t.release(log, cfg, Outcome{})
		return Outcome{}, err
	}
	began := time.Now()
	if ev.early != nil {
		ev.missed = ev.early.handOver()
	}
	log.Info("command started", "event", "started", "pid", c.PID())
	cfg.Watch.leading()

	ev.stepDown, ev.asker = t.Requests(), t.asker(context.WithoutCancel(ctx))
	ev.lost = func(err error) { t.hook(log, cfg, "lost", cfg.Hooks.Lost, err) }
	introduction := time.AfterFunc(introduceAfter, func() { t.Introduce(context.WithoutCancel(ctx)) })
	outcome, err := supervise(cfg, log, asked, s, c, ev)
	introduction.Stop()
	t.End(ending(outcome, err))
	if err == nil && !outcome.Interrupted {
		linger(cfg, log, s, ev.signals, cfg.MinHold-time.Since(began))
	}
	if s.Err() == nil && !errors.As(err, new(*LostError)) {
		if cfg.ending != nil {
			cfg.ending(outcome)
		}
		t.release(log, cfg, outcome)
	}
	return outcome, err
}

// introduceAfter is when a command has run for long enough for somebody to look who
// has the lock.
const introduceAfter = time.Second

// asker returns a function that finds out who asks for the lock, and then says so.
func (t *tenure) asker(ctx context.Context) func(chan<- string) {
	return func(by chan<- string) {
		who, to := t.Asker(ctx)
		t.Prefer(to)
		by <- cmp.Or(who, "somebody")
	}
}

// release gives the lock back before the process ends: the end of a session
// frees it too, but a moment later, and then the next run in the same script
// would meet a held lock. The command is dead, or was never started.
func (t *tenure) release(log *slog.Logger, cfg Config, outcome Outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), session.HolderShare(cfg.Session.Lease))
	defer cancel()
	if err := t.Release(ctx, cfg.parting); err != nil {
		log.Warn("the session was lost after the command had ended", "event", "lost", "reason", err.Error())
		t.EndLate(context.Background())
		return
	}
	event, message := "released", "lock released"
	if outcome.SteppedDown {
		event, message = "handed_over", "lock released, as was asked"
	}
	log.Log(ctx, LevelNotice, message, "event", event)
	t.hook(log, cfg, "released", cfg.Hooks.Released, nil)
}

// describe is what the log says of a lock beside its keys and its token.
func (t *tenure) describe() []any {
	var numbers []int64
	for _, held := range t.Locks {
		numbers = append(numbers, held.Number)
	}
	attrs := []any{"id", numbers}
	if t.Slot > 0 {
		attrs = append(attrs, "slot", t.Slot)
	}
	if t.Waited > 0 {
		attrs = append(attrs, "waited", t.Waited)
	}
	return attrs
}

// events are what a command's supervision hears of beside the command itself
// and the end of the session.
type events struct {
	signals <-chan os.Signal
	renewed <-chan time.Duration // the session's latest deadline

	stepDown <-chan struct{}     // somebody asks for it,
	asker    func(chan<- string) // and this finds out who

	early  *early      // has the signals until the command runs; nil: they have been left to come
	missed []os.Signal // those that came while the command was being started

	lost func(reason error) // is called after the order to kill the command
}

// linger keeps the lock of a command that has ended for as long as it says, or
// until a signal asks this process to end.
func linger(cfg Config, log *slog.Logger, s *session.Session, signals <-chan os.Signal, d time.Duration) {
	if d <= 0 {
		return
	}
	log.Info("holding the lock for the rest of --min-hold", "event", "lingering", "rest", d)
	cfg.Watch.alive(d + cfg.Session.Lease)
	over := time.After(d)
	for {
		select {
		case <-over:
			return
		case <-s.Lost():
			log.Warn("the lock was lost before --min-hold was over; another node may run the command again: "+s.Err().Error(), "event", "lost")
			return
		case sig := <-signals:
			if child.Interrupts(sig.(unix.Signal)) {
				return
			}
		}
	}
}

// leaseGrace is the longest grace after the holder's share of the lease: with
// a tenth of the lease left, the command is dead before the server, hearing
// nothing either, gives the lock to someone who doesn't wait.
func leaseGrace(lease time.Duration) time.Duration {
	return lease*9/10 - session.HolderShare(lease)
}

// guardPatience is how long the guard may take to kill once the lock is lost:
// half of what lies between the holder's share of the lease and the instant at
// which the command is dead for certain. The other half is for this process, which
// kills the guard and what is left then.
func guardPatience(lease time.Duration) time.Duration {
	const most = 2 * time.Second
	return min(most, (session.TakeoverDelay(lease)-session.HolderShare(lease))/2)
}

// supervise is where the lock's fate and the command's meet. It returns when
// the whole tree is dead.
func supervise(cfg Config, log *slog.Logger, began time.Time, s *session.Session, c *child.Child, ev events) (Outcome, error) {
	timeout := after(cfg.Timeout)
	lost := s.Lost()
	var killAfter <-chan time.Time
	var timedOut, interrupted, asked bool
	asker := make(chan string, 1)
	var unkillable string
	var tick <-chan time.Time
	if cfg.Watch.Alive != nil {
		ticker := time.NewTicker(cfg.Session.Lease / 5)
		defer ticker.Stop()
		tick = ticker.C
	}
	heed := func(sig unix.Signal) {
		if !child.Interrupts(sig) {
			return
		}
		interrupted = true
		cfg.Watch.ending()
		if killAfter == nil {
			killAfter = after(cfg.KillAfterSignal)
		}
	}
	for _, sig := range ev.missed {
		c.Signal(sig.(unix.Signal)) // it may not have heard the terminal's either
		heed(sig.(unix.Signal))
	}
	for {
		cfg.Watch.alive(cfg.Session.Lease)
		select {
		case <-tick: // to say that
		case <-c.Done():
			outcome, err := conclude(cfg, log, began, s, c)
			if lost != nil && errors.As(err, new(*LostError)) { // the guard was faster
				log.Info("lock lost", "event", "lost", "reason", err.Error())
				ev.lost(err)
			}
			outcome.TimedOut, outcome.Interrupted, outcome.SteppedDown = timedOut, interrupted, asked
			return outcome, err

		case <-lost:
			lost = nil
			c.Lose()
			log.Info("lock lost, killing the command", "event", "lost", "reason", s.Err().Error())
			ev.lost(s.Err())
			if unkillable != "" {
				complain(log, s, unkillable)
			}

		case deadline := <-ev.renewed:
			c.Renew(deadline)

		case sig := <-ev.signals:
			c.Forward(sig.(unix.Signal))
			heed(sig.(unix.Signal))

		case <-ev.stepDown:
			ev.stepDown = nil // once is enough
			go ev.asker(asker)

		case by := <-asker:
			asked = true
			c.Signal(unix.SIGTERM)
			c.Signal(unix.SIGCONT)
			log.Warn("asked to step down by "+by+"; sending SIGTERM", "event", "stepping_down", "by", by)
			if killAfter == nil {
				killAfter = after(cfg.KillAfterSignal)
			}

		case <-timeout:
			timedOut, timeout = true, nil
			c.Signal(unix.SIGTERM)
			c.Signal(unix.SIGCONT)
			log.Warn(fmt.Sprintf("the command ran for all of the %v that --timeout allows; sending SIGTERM", cfg.Timeout), "event", "timeout")
			killAfter = after(cfg.KillAfterTimeout)

		case <-killAfter:
			killAfter = nil
			c.Kill()
			log.Warn("the command did not end after SIGTERM; killing it and all that it started", "event", "killed")

		case event := <-c.Events():
			report(log, cfg, s, c, event)
			unkillable = cmp.Or(event.Unkillable, unkillable)
		}
	}
}

// after is a timer's channel; none at all for 0.
func after(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}

func report(log *slog.Logger, cfg Config, s *session.Session, c *child.Child, event child.Event) {
	switch {
	case event.Stopped != 0:
		c.StopWith()
	case event.Unkillable != "":
		complain(log, s, event.Unkillable)
	case event.Leftovers != "" && cfg.WaitForLeftovers:
		log.Info("the command has ended; waiting for what it left running: "+event.Leftovers, "event", "leftovers")
	case event.Leftovers != "":
		log.Warn("the command has ended; ending what it left running: "+event.Leftovers, "event", "leftovers")
	}
}

// complain names the processes that SIGKILL doesn't reach.
func complain(log *slog.Logger, s *session.Session, processes string) {
	consequence := "the lock stays held while they live"
	if s.Err() != nil {
		consequence = "the lock is lost: another node may run the command while they live"
	}
	log.Error("these processes can't be killed, and "+consequence+": "+processes, "event", "unkillable")
}

// conclude turns the end of the tree into an outcome.
func conclude(cfg Config, log *slog.Logger, began time.Time, s *session.Session, c *child.Child) (Outcome, error) {
	result := c.Result()
	ran := time.Since(began)
	if result.Ending == child.SocketClosed || result.Ending == child.LeaseOver {
		// The guard was faster than the session, which has the reason.
		select {
		case <-s.Lost():
		case <-time.After(time.Second):
		}
	}
	err := lossOf(cfg, s, c)
	if err == nil && result.GuardDied {
		err = &GuardDiedError{Killed: result.Killed}
	}
	if err != nil {
		log.Info("command killed", "event", "killed", "ran", ran, "processes", result.Killed)
		return Outcome{}, err
	}
	log.Info("command ended", "event", "exited", "ran", ran, "status", describeStatus(result.Status))
	return Outcome{Status: result.Status, Ran: ran}, nil
}

// lossOf says how the lock was lost while the command ran, or nil.
func lossOf(cfg Config, s *session.Session, c *child.Child) error {
	result := c.Result()
	lost := &LostError{Database: session.Target(cfg.Session.Database), What: fmt.Sprintf("the command (process %d) was killed with all that it had started, %d processes", c.PID(), result.Killed)}
	if result.Killed == 1 {
		lost.What = fmt.Sprintf("the command (process %d) was killed", c.PID())
	}
	switch {
	case result.GuardDied:
		lost.What += "; for that its guard process, which did not do so in time, was killed, too"
	case result.Killed == 0:
		lost.What = fmt.Sprintf("the command (process %d) had just ended: %s", c.PID(), describeStatus(result.Status))
	}
	var cause *session.LostError
	switch {
	case errors.As(s.Err(), &cause):
		lost.Cause, lost.Heard = cause.Cause, cause.Heard
	case result.Ending == child.LeaseOver:
		lost.Cause = session.ErrStopped
	case result.Ending == child.SocketClosed:
		lost.Cause = errors.New("the server closed the connection")
	default:
		return nil
	}
	return lost
}

func describeStatus(status unix.WaitStatus) string {
	if status.Signaled() {
		return unix.SignalName(status.Signal())
	}
	return "exit status " + strconv.Itoa(status.ExitStatus())
}

// environment is what the command gets to know about its lock. Of several keys
// each has a line.
func environment(cfg Config, t *tenure) []string {
	var ids []string
	for _, held := range t.Locks {
		ids = append(ids, held.String())
	}
	env := append(slices.Clone(cfg.Env),
		"PGLEAD_LOCK_KEY="+strings.Join(cfg.Keys, "\n"),
		"PGLEAD_LOCK_ID="+strings.Join(ids, "\n"),
		fmt.Sprintf("PGLEAD_TOKEN=%d", t.Token),
		"PGLEAD_SYSTEM_ID="+t.SystemID,
		fmt.Sprintf("PGLEAD_BACKEND_PID=%d", t.Session.BackendPID()),
	)
	if t.Slot > 0 {
		env = append(env, fmt.Sprintf("PGLEAD_SLOT=%d", t.Slot))
	}
	return env
}

// early hears the signals before the command runs.
type early struct {
	starting atomic.Bool // from now on, what comes is for the command
	missed   []os.Signal
	close    func()
	closed   chan struct{}
}

// interruptible returns a context that ends when a signal asks this process
// to, and who hears the signals until then.
func interruptible(signals <-chan os.Signal) (context.Context, *early) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stop := make(chan struct{})
	e := &early{close: sync.OnceFunc(func() { close(stop) }), closed: make(chan struct{})}
	go func() {
		defer close(e.closed)
		for {
			select {
			case sig := <-signals:
				if e.starting.Load() && len(e.missed) < cap(signals) {
					e.missed = append(e.missed, sig)
				}
				if child.Interrupts(sig.(unix.Signal)) {
					cancel(&InterruptedError{Signal: sig.(unix.Signal)})
				}
			case <-stop:
				return
			}
		}
	}()
	return ctx, e
}

// handOver leaves the signals to someone else from now on, who gets those that
// came while the command was being started, too.
func (e *early) handOver() (missed []os.Signal) {
	e.close()
	<-e.closed
	return e.missed
}
