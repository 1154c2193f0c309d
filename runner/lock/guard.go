package lock

import (
	"sync"

	"github.com/pglead/pglead/runner/session"
)

// StartGuard starts the guard for the command of a session. If the session is given up, stop ends
// that guard; stop may be nil. This package knows nothing else of guards.
type StartGuard func(*session.Session) (stop func(), err error)

// guardStart is the start of the one guard that a session gets. It goes on beside the questions to
// the server, so that neither waits for the other.
type guardStart struct {
	begun bool
	start func() (stop func(), err error) // only once, however often it is called
}

func newGuardStart(s *session.Session, start StartGuard) *guardStart {
	if start == nil {
		start = func(*session.Session) (func(), error) { return nil, nil }
	}
	return &guardStart{start: sync.OnceValues(func() (func(), error) { return start(s) })}
}

// begin starts the guard in a goroutine of its own.
func (g *guardStart) begin() {
	g.begun = true
	go func() { _, _ = g.start() }() // await has its error
}

// await starts the guard, unless begin has, and returns when it is there.
func (g *guardStart) await() error {
	g.begun = true
	_, err := g.start()
	return err
}

// giveUp ends the guard, if there is one.
func (g *guardStart) giveUp() {
	if !g.begun {
		return
	}
	if stop, _ := g.start(); stop != nil {
		stop()
	}
}
