package runner

import "time"

// Stages are told which stage a node has reached, for people and for a supervisor of this process.
// Each of the functions may be nil, and none may block. lock.Observer is told of the wait.
type Stages struct {
	// Leading is called when the command has been started.
	Leading func()
	// Resting is called, when this node doesn't lead, with the time of its next try.
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
