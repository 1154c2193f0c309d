package lock

import (
	"github.com/pglead/pglead/runner/session"
)

// preparation is the one call of Acquire's prepare for a session. It is nil if there is
// nothing to prepare.
type preparation struct {
	begun bool
	ready chan struct{}
	call  func() (func(), error)
	undo  func()
	err   error
}

func newPreparation(s *session.Session, prepare func(*session.Session) (func(), error)) *preparation {
	if prepare == nil {
		return nil
	}
	return &preparation{call: func() (func(), error) { return prepare(s) }, ready: make(chan struct{})}
}

// begin starts the call in a goroutine of its own.
func (p *preparation) begin() {
	if p == nil || p.begun {
		return
	}
	p.begun = true
	go func() {
		defer close(p.ready)
		p.undo, p.err = p.call()
	}()
}

// done begins the call, if that is still to do, and returns when it is over.
func (p *preparation) done() error {
	if p == nil {
		return nil
	}
	p.begin()
	<-p.ready
	return p.err
}

// abandon undoes what the call has made ready.
func (p *preparation) abandon() {
	if p == nil || !p.begun {
		return
	}
	<-p.ready
	p.undo()
}
