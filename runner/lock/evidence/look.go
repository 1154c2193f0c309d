package evidence

import (
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
)

// Look is what the server showed of a lock: its holders and its line.
type Look struct {
	Role    uint32 // of this session
	Holders []Seat
	Line    []Seat
	Sent    boottime.Instant // when the server was asked
}

// Seat is a session's part in a lock, as far as the evidence needs it. (People are shown an
// inspect.View.)
type Seat struct {
	ID       lockkey.ID // of the lock it holds
	Shared   bool
	PID      uint32
	Role     uint32
	Token    int64         // of a holder that shows it, or 0
	Ended    bool          // it shows that this tenure's command is dead
	Outlives time.Duration // how long its command may outlive the lock, if it says so
	Opened   string        // when the session was opened, by the server's clock, if this role may see it
}
