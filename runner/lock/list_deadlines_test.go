package lock

import (
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
)

// TestDeadlinesOfList: a session's deadline reaches all of a list's commands. Only the latest counts.
func TestDeadlinesOfList(t *testing.T) {
	of := func() *Attempt { return &Attempt{renewed: make(chan boottime.Instant, 1)} }
	l := &List{underWay: map[lockkey.ID]*Attempt{{Number: 1}: of(), {Number: 2}: of()}}
	l.passOn(1)
	l.passOn(2)
	for id, a := range l.underWay {
		if deadline := <-a.renewed; deadline != 2 {
			t.Errorf("%v: deadline %v", id, deadline)
		}
	}
}
