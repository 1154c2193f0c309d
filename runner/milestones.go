package runner

import "time"

// Milestones are functions that are called at a node's milestones, to inform people and a supervisor
// of this process. Each function may be nil, and none may block. For the wait there is
// lock.Observer.
type Milestones struct {
	// Leading is called when the command has been started.
	Leading func()
	// Resting is called when this node pauses without the lock, with the time of its next try.
	Resting func(until time.Time)
	// Ending is called when a signal asks this process to end.
	Ending func()
}

func (m Milestones) leading() {
	if m.Leading != nil {
		m.Leading()
	}
}

func (m Milestones) resting(until time.Time) {
	if m.Resting != nil {
		m.Resting(until)
	}
}

func (m Milestones) ending() {
	if m.Ending != nil {
		m.Ending()
	}
}
