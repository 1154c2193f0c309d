package runner

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// process is this process of pglead: it has what all of its runs share.
type process struct {
	parent    *child.Parent    // starts the guards, and kills what dead ones leave behind
	caught    <-chan os.Signal // for the command, or for this process to end
	catching  <-chan struct{}  // is closed once signals are caught
	hooksLeft atomic.Int32     // how many hooks run, or wait for their turn
	lastHook  chan struct{}    // is closed when the last of them is done; nil if there was none
}

// newProcess prepares this process for signals, and for commands whose standard input is stdin.
func newProcess(stdin *os.File) (*process, error) {
	parent, err := child.NewParent(stdin)
	if err != nil {
		return nil, err
	}
	parent.ReapOrphans()
	p := &process{parent: parent}
	p.caught, p.catching = child.CatchSignals()
	return p, nil
}

// newGuard starts a guard that holds the session's socket.
func (p *process) newGuard(s *session.Session) (*child.Guard, error) {
	socket, ok := s.Socket().(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("the lock's connection (%T) has no descriptor for the guard", s.Socket())
	}
	return p.parent.StartGuard(socket)
}

// splay is the random wait before the first try.
func (p *process) splay(cfg Config) error {
	if cfg.Splay == 0 {
		return nil
	}
	return p.sleep(cfg, pace.Between(0, cfg.Splay))
}

// sleep pauses without a lock, unless a signal asks this process to end.
func (p *process) sleep(cfg Config, d time.Duration) error {
	cfg.Lock.SayTrying(d)
	ctx, taker := interruptible(p.caught)
	cfg.CommandObserver.sayNextTry(time.Now().Add(d))
	pace.Sleep(ctx, d)
	taker.handOver() // first, since a last signal may still end ctx
	return context.Cause(ctx)
}
