package lock

import (
	"fmt"
	"time"

	"github.com/pglead/pglead/runner/inspect"
)

// ConflictError says that somebody else has the lock.
type ConflictError struct {
	Database string
	Waited   time.Duration
	Holders  []inspect.View // as far as they are known
}

func (e *ConflictError) Error() string {
	text := fmt.Sprintf("the lock in %s is held elsewhere", e.Database)
	if e.Waited > 0 {
		text = fmt.Sprintf("the lock in %s was held elsewhere for all of the %v that --wait allows", e.Database, e.Waited)
	}
	const most = 3
	for i, holder := range e.Holders {
		if i == most {
			return fmt.Sprintf("%s, and %d more", text, len(e.Holders)-most)
		}
		if i == 0 {
			text += ": by "
		} else {
			text += "; by "
		}
		text += holder.String()
	}
	return text
}
