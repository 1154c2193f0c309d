package lock

import (
	"sync"

	"github.com/pglead/pglead/runner/session"
)

// Prepare prepares, for a session, what a command needs. If the session is given up, abandon undoes
// that; it may be nil.
type Prepare func(*session.Session) (abandon func(), err error)

// preparation is the call of Acquire's prepare for a session. There is only one.
type preparation struct {
	begun bool
	call  func() (abandon func(), err error) // only once, however often it is called
}

// newPreparation returns a preparation that has not begun. prepare is nil if there is nothing to
// prepare.
func newPreparation(s *session.Session, prepare Prepare) *preparation {
	return &preparation{call: sync.OnceValues(func() (abandon func(), err error) {
		if prepare != nil {
			abandon, err = prepare(s)
		}
		return abandon, err
	})}
}

// begin starts the call in a goroutine of its own.
func (p *preparation) begin() {
	p.begun = true
	go func() { _, _ = p.call() }() // done has its error
}

// done begins the call, unless it has begun, and returns when it is over.
func (p *preparation) done() error {
	p.begun = true
	_, err := p.call()
	return err
}

// abandon undoes what the call has prepared.
func (p *preparation) abandon() {
	if !p.begun {
		return
	}
	if abandon, _ := p.call(); abandon != nil {
		abandon()
	}
}
