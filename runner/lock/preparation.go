package lock

import (
	"sync"

	"github.com/pglead/pglead/runner/session"
)

// preparation is the one call of Acquire's prepare for a session. It is nil if there is
// nothing to prepare.
type preparation struct {
	begun bool
	call  func() (undo func(), err error) // only once, however often it is called
}

func newPreparation(s *session.Session, prepare func(*session.Session) (func(), error)) *preparation {
	if prepare == nil {
		return nil
	}
	return &preparation{call: sync.OnceValues(func() (func(), error) { return prepare(s) })}
}

// begin starts the call in a goroutine of its own.
func (p *preparation) begin() {
	if p == nil {
		return
	}
	p.begun = true
	go func() { _, _ = p.call() }() // done has its error
}

// done begins the call, if that is still to do, and returns when it is over.
func (p *preparation) done() error {
	if p == nil {
		return nil
	}
	p.begun = true
	_, err := p.call()
	return err
}

// abandon undoes what the call has made ready.
func (p *preparation) abandon() {
	if p == nil || !p.begun {
		return
	}
	undo, _ := p.call()
	undo()
}
