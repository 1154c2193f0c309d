package lock

import (
	"github.com/pglead/pglead/runner/session"
)

// preparation is a call of Config.Prepare, which begins once. That of a bid without
// one is nil.
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

// begin has it done beside what the caller does.
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

// done returns when all is ready.
func (p *preparation) done() error {
	if p == nil {
		return nil
	}
	p.begin()
	<-p.ready
	return p.err
}

// abandon undoes what was made ready.
func (p *preparation) abandon() {
	if p == nil || !p.begun {
		return
	}
	<-p.ready
	p.undo()
}
