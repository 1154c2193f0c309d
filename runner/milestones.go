package runner

import "time"

// Milestones are called as a run proceeds, for people and for a supervisor of this process;
// lock.Observer tells of the wait. Each function may be nil, and none may block.
type Milestones struct {
	// Started is called when the command has been started.
	Started func()
	// NextTry is called when this node has no lock and doesn't wait for it, with the time at which
	// it tries next. After the loss of a lock that is at once.
	NextTry func(at time.Time)
	// Interrupted is called when a signal asks the command, and this process with it, to end.
	Interrupted func()
}

func (m Milestones) started() {
	if m.Started != nil {
		m.Started()
	}
}

func (m Milestones) nextTry(at time.Time) {
	if m.NextTry != nil {
		m.NextTry(at)
	}
}

func (m Milestones) interrupted() {
	if m.Interrupted != nil {
		m.Interrupted()
	}
}
