package runner

import (
	"time"

	"github.com/pglead/pglead/runner/lock"
)

// Watch is told how a run goes on, for people and for the service manager. Each of
// its functions may be nil, and must not block.
type Watch struct {
	lock.Observer // of the wait
	// Leading is told that the command has been started.
	Leading func()
	// Resting is told when this node, which doesn't lead, stands for election next.
	Resting func(until time.Time)
	// Ending is told that this process has been asked to end.
	Ending func()
}

func (w Watch) alive(within time.Duration) {
	if w.Alive != nil {
		w.Alive(within)
	}
}

func (w Watch) leading() {
	if w.Leading != nil {
		w.Leading()
	}
}

func (w Watch) resting(d time.Duration) {
	if w.Resting != nil && d > 0 {
		w.Resting(time.Now().Add(d))
	}
}

func (w Watch) ending() {
	if w.Ending != nil {
		w.Ending()
	}
}
