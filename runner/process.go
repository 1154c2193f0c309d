package runner

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// process is what all runs of this process share.
type process struct {
	common   Config
	guards   *child.Guards
	caught   <-chan os.Signal // for the command, or for this process to end
	catching <-chan struct{}  // is closed once signals are caught
	hooks    sync.WaitGroup   // those that run

	// reached, if it is not nil, is set once the server has answered for the lock. From
	// then on every error is ridden out.
	reached *bool
	lost    bool // the last run's lock
}

// begin makes this process ready for commands and for signals.
func begin(cfg Config) (*process, error) {
	guards, err := child.NewGuards()
	if err != nil {
		return nil, err
	}
	guards.Stdin = cfg.Stdin
	child.ReapOrphans()
	p := &process{common: cfg, guards: guards}
	p.caught, p.catching = child.Signals()
	return p, nil
}

// lockConfig is the configuration for package lock.
func (p *process) lockConfig() lock.Config {
	remember := p.common.Ledger
	remember.Keys = p.common.Keys
	return lock.Config{
		Claim: p.common.Claim, Session: p.common.Session, Description: p.common.Description, Wait: p.common.Wait,
		LostGrace: p.common.LostGrace, LockDelay: p.common.LockDelay, Explain: p.common.Explain, Reached: p.reached, Observer: p.common.Watch.Observer, Log: p.common.Log,
		Ledger: remember, WasHolder: p.lost,
	}
}

// newGuard starts a guard that holds the session's socket.
func (p *process) newGuard(s *session.Session) (*child.Guard, error) {
	socket, ok := s.Conn().(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("the lock's connection (%T) has no descriptor for the guard", s.Conn())
	}
	return p.guards.Start(socket)
}

// rest waits, with no lock held, unless a signal asks this process to end.
func (p *process) rest(d time.Duration) error {
	locking := p.lockConfig()
	p.common.Watch.resting(d)
	p.common.Watch.SayAlive(d + locking.AttemptMost())
	ctx, listener := interruptible(p.caught)
	if d > 0 {
		pace.Sleep(ctx, d)
	}
	listener.handOver() // until then it may still take a signal, and end ctx
	return context.Cause(ctx)
}
