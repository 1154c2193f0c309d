package runner

import "time"

// Stages are functions that are called when a node reaches a stage, to inform people and a
// supervisor of this process. Each function may be nil, and none may block. For the wait there is
// lock.Observer.
type Stages struct {
	// Leading is called when the command has been started.
	Leading func()
	// Resting is called when this node pauses without the lock, with the time of its next try.
	Resting func(until time.Time)
	// Ending is called when a signal asks this process to end.
	Ending func()
}

func (s Stages) leading() {
	if s.Leading != nil {
		s.Leading()
	}
}

func (s Stages) resting(until time.Time) {
	if s.Resting != nil {
		s.Resting(until)
	}
}

func (s Stages) ending() {
	if s.Ending != nil {
		s.Ending()
	}
}
