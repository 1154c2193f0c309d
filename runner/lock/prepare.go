package lock

import (
	"sync"

	"github.com/pglead/pglead/runner/session"
)

// Prepare prepares what the command of a session needs beside the lock, such as its guard. If the
// session is given up, stop undoes that; stop may be nil.
type Prepare func(*session.Session) (stop func(), err error)

// preparation is the one call of Prepare for a session. It goes on beside the questions to the
// server, so that neither waits for the other.
type preparation struct {
	begun bool
	call  func() (stop func(), err error) // only once, however often it is called
}

func newPreparation(s *session.Session, prepare Prepare) *preparation {
	if prepare == nil {
		prepare = func(*session.Session) (func(), error) { return nil, nil }
	}
	return &preparation{call: sync.OnceValues(func() (func(), error) { return prepare(s) })}
}

// begin prepares in a goroutine of its own.
func (p *preparation) begin() {
	p.begun = true
	go func() { _, _ = p.call() }() // await has its error
}

// await prepares, unless begin has, and returns when that is done.
func (p *preparation) await() error {
	p.begun = true
	_, err := p.call()
	return err
}

// giveUp undoes what was prepared, if anything was.
func (p *preparation) giveUp() {
	if !p.begun {
		return
	}
	if stop, _ := p.call(); stop != nil {
		stop()
	}
}
