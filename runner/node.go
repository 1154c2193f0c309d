package runner

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// node is this pglead on its host: it has what all of its runs share.
type node struct {
	guards   *child.Guards
	caught   <-chan os.Signal // for the command, or for this process to end
	catching <-chan struct{}  // is closed once signals are caught
	hooks    sync.WaitGroup   // the hooks that run, or wait for their turn
	lastHook chan struct{}    // is closed when the last of them is done
}

// begin prepares this process for commands and signals.
func begin(cfg Config) (*node, error) {
	guards, err := child.NewGuards()
	if err != nil {
		return nil, err
	}
	guards.Stdin = cfg.Stdin
	guards.ReapOrphans()
	n := &node{guards: guards}
	n.caught, n.catching = child.Signals()
	return n, nil
}

// newGuard starts a guard that holds the session's socket.
func (n *node) newGuard(s *session.Session) (*child.Guard, error) {
	socket, ok := s.Socket().(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("the lock's connection (%T) has no descriptor for the guard", s.Socket())
	}
	return n.guards.Start(socket)
}

// sleep pauses without a lock, unless a signal asks this process to end.
func (n *node) sleep(cfg Config, d time.Duration) error {
	cfg.Observer.SayAlive(d + cfg.AttemptMost())
	ctx, listener := interruptible(n.caught)
	if d > 0 {
		cfg.Milestones.resting(time.Now().Add(d))
		pace.Sleep(ctx, d)
	}
	listener.handOver() // first, since a last signal may still end ctx
	return context.Cause(ctx)
}
