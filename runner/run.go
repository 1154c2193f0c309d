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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

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
	if err := rest(cfg, signals, lock.Jitter(0, cfg.Splay)); err != nil {
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
