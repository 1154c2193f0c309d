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
	prepare func() (stop func(), err error)
	once    sync.Once // of the call, or of giving up before it
	stop    func()
	err     error
}

func newPreparation(s *session.Session, prepare Prepare) *preparation {
	if prepare == nil {
		prepare = func(*session.Session) (func(), error) { return nil, nil }
	}
	return &preparation{prepare: func() (func(), error) { return prepare(s) }}
}

// begin prepares in a goroutine of its own.
func (p *preparation) begin() {
	go func() { _ = p.await() }() // a later await has its error
}

// await prepares, unless begin has, and returns when that is done.
func (p *preparation) await() error {
	p.once.Do(func() { p.stop, p.err = p.prepare() })
	return p.err
}

// giveUp undoes what was prepared. What was not begun is not prepared any more.
func (p *preparation) giveUp() {
	p.once.Do(func() {})
	if p.stop != nil {
		p.stop()
	}
}
