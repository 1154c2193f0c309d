package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/session"
)

// Forever is a wait without end.
const Forever = time.Duration(math.MaxInt64)

// A waiter stands in the server's queue for a slice at a time. A slice's end
// costs its place in line, so slices are long; they are not longer because a
// waiting statement's snapshot holds back vacuum. The jitter keeps a thousand
// waiters from coming back all at once.
const (
	sliceLeast = 30 * time.Second
	sliceMost  = 60 * time.Second
)

// Where a queue is not to be had the lock is tried again after a random time
// of once to three times an interval that grows from pollLeast to pollMost, at
// which a thousand waiters come to five hundred tries a second.
const (
	pollLeast = 250 * time.Millisecond
	pollMost  = time.Second
)

// Between attempts to connect a waiter pauses for a random part of a backoff
// that doubles, so that a server that comes up again isn't run over.
const (
	backoffFirst = 200 * time.Millisecond
	backoffMost  = 5 * time.Second
)

// A server that is full has room again when one of its hundred is done, which is
// soon.
const (
	fullFirst = 50 * time.Millisecond
	fullMost  = time.Second
)

// lock is what a command can be started under: the session, what it holds,
// and the guard that holds on to the session's socket.
type lock struct {
	session *session.Session
	hold    *session.Hold
	guard   *child.Guard
	grant   session.Grant
	began   time.Time           // of the wait for it
	awaited map[lockkey.ID]bool // others had them since then
	parted  bool                // the session has ended
	looked  time.Time           // when cfg.Watch was told last who has the lock
}

// drop gives everything up; the end of the session frees the lock.
func (l *lock) drop() {
	if l.guard != nil {
		l.guard.Close()
	}
	l.session.Close()
}

// acquire opens a session and takes the lock on it.
func acquire(ctx context.Context, cfg Config) (l *lock, err error) {
	began := time.Now()
	err = persist(ctx, cfg, func(left func() time.Duration, first bool) (err error) {
		l, err = attempt(ctx, cfg, left, first)
		return err
	})
	if err == nil {
		l.began = began
	}
	return l, err
}

// persist does what may fail for reasons that pass by themselves: a server
// that restarts, has no room, or is a standby until it is promoted, and the
// loss of the own session meanwhile. Someone who waits rides these out. When
// the time is up the last obstacle is the error.
func persist(ctx context.Context, cfg Config, try func(left func() time.Duration, first bool) error) error {
	began := time.Now()
	left := func() time.Duration {
		if cfg.Wait == Forever {
			return Forever
		}
		return cfg.Wait - time.Since(began)
	}
	backoff := backoffFirst
	for first := true; ; first = false {
		cfg.Watch.alive(attemptMost(cfg))
		err := try(left, first)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		pause := jitter(backoff/2, backoff)
		persists := session.Passing(err) || cfg.reached != nil && *cfg.reached
		if !persists || left() <= pause {
			return err
		}
		cfg.Watch.obstacle(err)
		cfg.Log.Info("waiting for the database", "event", "waiting", "reason", err.Error(), "retry_in", pause)
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
		backoff = min(2*backoff, backoffMost)
	}
}

// attemptMost is more than one attempt can take: the connection to each host, the
// lock-delay, and some questions, each of which has less than the lease.
func attemptMost(cfg Config) time.Duration {
	hosts := 1 + len(cfg.Session.Database.Fallbacks)
	return time.Duration(hosts)*cfg.Session.ConnectTimeout + cfg.LockDelay + 4*cfg.Session.Lease
}

// open opens a session for someone who may wait for that long. A server without
// room, as when a thousand nodes fire at once, is asked again for as long as one
// attempt to connect may take, also by who doesn't wait for the lock.
func open(ctx context.Context, cfg Config, left time.Duration) (*session.Session, error) {
	of := cfg.Session
	of.Claim = cfg.Claim
	if cfg.Wait > 0 {
		of.ConnectTimeout = min(of.ConnectTimeout, max(left, time.Second))
	}
	began, backoff := time.Now(), fullFirst
	for {
		s, err := session.Open(ctx, of)
		var refused *session.Error
		if err == nil || !errors.As(err, &refused) || !refused.Full {
			return s, err
		}
		pause := jitter(backoff/2, backoff)
		if time.Since(began)+pause > of.ConnectTimeout {
			return nil, err
		}
		if !sleep(ctx, pause) {
			return nil, context.Cause(ctx)
		}
		backoff = min(2*backoff, fullMost)
	}
}

func attempt(ctx context.Context, cfg Config, left func() time.Duration, first bool) (*lock, error) {
	s, err := open(ctx, cfg, left())
	if err != nil {
		return nil, err
	}
	l := &lock{session: s, hold: s.Claim(cfg.Claim)}
	delay, err := l.take(ctx, cfg, left, first)
	if err == nil {
		err = l.settle(ctx, cfg, delay)
	}
	if err != nil {
		if !l.parted {
			l.drop()
		}
		return nil, err
	}
	cfg.answered()
	return l, nil
}

// startGuard starts the guard while there is something else to wait for.
func (l *lock) startGuard(cfg Config) (err error) {
	socket, ok := l.session.Conn().(syscall.Conn)
	if !ok {
		return fmt.Errorf("the lock's connection (%T) has no descriptor for the guard", l.session.Conn())
	}
	l.guard, err = cfg.guards.New(socket)
	return err
}

// settle makes a granted lock one that a command can be started under: it
// waits until a former holder that may not know of its loss is dead, draws the
// token, and keeps the session alive from then on. The guard, if there is none
// yet, starts while the token is drawn.
func (l *lock) settle(ctx context.Context, cfg Config, delay time.Duration) error {
	s := l.session
	// A second login may take its time.
	kept := delay > 0 || cfg.Session.Quorum || cfg.Session.Transaction
	if kept {
		if err := s.Ping(ctx); err != nil {
			return err
		}
		s.Keep()
		if err := l.hold.LetFollow(ctx); err != nil {
			return err
		}
	}
	if err := l.waitOut(ctx, cfg, delay); err != nil {
		return err
	}
	guarded := make(chan error, 1)
	if l.guard == nil {
		go func() { guarded <- l.startGuard(cfg) }()
	} else {
		guarded <- nil
	}
	grant, err := l.hold.Confirm(ctx)
	err = cmp.Or(err, <-guarded) // whichever is later: l.guard is this goroutine's again
	if err == nil && !kept {
		s.Keep()
		err = s.Err()
	}
	l.grant = grant
	return err
}

// waitOut holds the lock for as long as a former holder may be alive.
func (l *lock) waitOut(ctx context.Context, cfg Config, delay time.Duration) error {
	if delay <= 0 {
		return nil
	}
	cfg.Log.Info("lock granted without evidence that its last holder is dead; waiting", "event", "delayed", "delay", delay)
	select {
	case <-time.After(delay):
		return nil
	case <-l.session.Lost():
		return l.session.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take takes the lock: it tries first, and then waits for as long as it may.
// It returns how long the lock has to be held before the command may start.
func (l *lock) take(ctx context.Context, cfg Config, left func() time.Duration, first bool) (delay time.Duration, err error) {
	queue := !cfg.Session.Transaction
	pause := pollLeast
	for {
		before := len(l.hold.Held())
		granted, err := l.hold.Try(ctx)
		if err != nil {
			return 0, err
		}
		for _, lock := range l.hold.Held()[before:] {
			delay = max(delay, l.delay(cfg, lock, first && !l.awaited[lock.ID]))
		}
		if granted {
			break
		}
		if left() <= 0 {
			// The end of the session would free them a moment too late for the
			// next run of a script.
			if err := l.hold.Unlock(ctx, false); err != nil {
				return 0, err
			}
			return 0, l.refused(ctx, cfg)
		}
		cfg.answered()
		if l.guard == nil {
			if err := l.prepare(ctx, cfg); err != nil {
				return 0, err
			}
			defer l.beside(ctx, cfg)()
		}
		l.await(l.hold.Refused())
		if queue {
			before := len(l.hold.Held())
			queue, err = l.queue(ctx, cfg, left)
			if err != nil {
				return 0, err
			}
			if held := l.hold.Held(); len(held) > before {
				delay = max(delay, l.delay(cfg, held[len(held)-1], false))
			}
			if l.hold.Complete() {
				if !l.hold.Yield() {
					break
				}
				cfg.Log.Info("letting another in line have the lock, as was asked", "event", "yielded")
				if err := l.giveBack(ctx); err != nil {
					return 0, err
				}
				delay = 0
			}
			continue
		}
		if err := l.look(ctx, cfg); err != nil {
			return 0, err
		}
		cfg.Watch.alive(attemptMost(cfg))
		if !sleep(ctx, min(jitter(pause, 3*pause), left())) {
			return 0, context.Cause(ctx)
		}
		pause = min(2*pause, pollMost)
	}
	return delay, nil
}

// await notes that others have these locks, or may have had them from now on: the
// next grant of one is no first try.
func (l *lock) await(locks []session.Lock) {
	if l.awaited == nil {
		l.awaited = map[lockkey.ID]bool{}
	}
	for _, lock := range locks {
		l.awaited[lock.ID] = true
	}
}

// giveBack gives up what has been granted up to now, to stand in line again.
func (l *lock) giveBack(ctx context.Context) error {
	l.await(l.hold.Held())
	return l.hold.Unlock(ctx, false)
}

// refused says who has what could not be had.
func (l *lock) refused(ctx context.Context, cfg Config) error {
	held := &HeldError{Database: session.Target(cfg.Session.Database), Waited: cfg.Wait}
	if !cfg.Explain {
		return held
	}
	parting := cfg.parting && l.guard == nil && l.session.Part()
	views, err := l.session.Holders(ctx, cfg.Claim.IDs()...)
	if err != nil {
		return held // which is what matters
	}
	l.parted = parting
	for _, view := range views {
		if view.Backend != l.session.BackendPID() && (cfg.Claim.Gate == nil || view.ID != *cfg.Claim.Gate) {
			held.Holders = append(held.Holders, view)
		}
	}
	return held
}

// answered notes that this database can be one to wait for.
func (cfg Config) answered() {
	if cfg.reached != nil {
		*cfg.reached = true
	}
}

// prepare makes ready for a wait.
func (l *lock) prepare(ctx context.Context, cfg Config) error {
	cfg.Log.Info("waiting for the lock", "event", "waiting")
	if !cfg.Session.Transaction {
		if err := l.hold.Listen(ctx); err != nil {
			return err
		}
		if err := l.hold.Prepare(ctx); err != nil {
			return err
		}
	}
	return l.startGuard(cfg)
}

// queue stands in the server's queue for a slice, and says whether to do so
// again if that was in vain.
func (l *lock) queue(ctx context.Context, cfg Config, left func() time.Duration) (again bool, err error) {
	for left() > 0 {
		if err := l.look(ctx, cfg); err != nil {
			return false, err
		}
		cfg.Watch.alive(sliceMost + attemptMost(cfg))
		granted, err := l.hold.Wait(ctx, min(jitter(sliceLeast, sliceMost), left()))
		switch {
		case granted:
			return true, nil
		case err == nil:
		case session.Retryable(err):
			// What it holds of several locks may be what the others wait for.
			return true, l.giveBack(ctx)
		case errors.Is(err, session.ErrCrowded):
			cfg.Log.Info("many are in line already, standing aside", "event", "waiting")
			return true, l.standAside(ctx, cfg, left)
		case !session.CanQueue(err):
			cfg.Log.Info("no queue for this role, polling", "event", "waiting", "reason", err.Error())
			return false, nil
		default:
			return false, err
		}
	}
	return true, nil
}

// standAside waits for room in line. Meanwhile it listens to nothing: else what a
// holder announces would wake all that stand aside, too.
func (l *lock) standAside(ctx context.Context, cfg Config, left func() time.Duration) error {
	if err := l.hold.Unlisten(ctx); err != nil {
		return err
	}
	cfg.Watch.alive(sliceMost + attemptMost(cfg))
	err := l.hold.StandAside(ctx, min(jitter(sliceLeast, sliceMost), left()))
	if !session.Retryable(err) {
		return err
	}
	if err := l.hold.Listen(ctx); err != nil {
		return err
	}
	return l.giveBack(ctx) // see queue
}

// delay is how long a granted lock has to be held before the command may
// start.
//
// Whoever finds the lock free at the first try starts at once, unless the
// server is too young to tell, or something was heard of the lock. Whoever has
// waited for it, in this session or in one that was lost, goes by what it has
// heard, which may be nothing.
func (l *lock) delay(cfg Config, of session.Lock, firstTry bool) time.Duration {
	evidence := l.session.Evidence(of.ID)
	if firstTry && !evidence.Heard() {
		return l.session.FirstTryDelay(cfg.LockDelay)
	}
	return evidence.Delay(cfg.LockDelay)
}

func jitter(least, most time.Duration) time.Duration {
	return least + rand.N(most-least+1)
}

// sleep says whether the time passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// release gives the lock back before the process ends: the end of a session
// frees it too, but a moment later, and then the next run in the same script
// would meet a held lock. The command is dead, or was never started.
func (l *lock) release(log *slog.Logger, cfg Config, outcome Outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), session.HolderShare(cfg.Session.Lease))
	defer cancel()
	parting := cfg.parting && l.session.Part()
	if err := l.hold.Unlock(ctx, true); err != nil {
		log.Warn("the session was lost after the command had ended", "event", "lost", "reason", err.Error())
		return
	}
	l.parted = parting
	event, message := "released", "lock released"
	if outcome.SteppedDown {
		event, message = "handed_over", "lock released, as was asked"
	}
	log.Info(message, "event", event)
	l.hook(log, cfg, "released", cfg.Hooks.Released, nil)
}
