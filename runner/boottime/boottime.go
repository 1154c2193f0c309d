//go:build unix

// Package boottime reads the clock by which leases are measured. It goes on while the machine is
// suspended, and nobody can set it.
package boottime

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a moment on that clock, in nanoseconds since the machine was started. It has
// its own type, so that a moment and a duration can't be taken for each other.
type Instant int64

// Now is the present moment.
func Now() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic(fmt.Sprintf("clock_gettime(%d): %v", clock, err)) // every system has its clock
	}
	return Instant(ts.Nano())
}

// Until is the time from now to an instant.
func Until(t Instant) time.Duration { return t.Sub(Now()) }

// Add is the instant that lies d later.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub is the time from an earlier instant to this one.
func (t Instant) Sub(earlier Instant) time.Duration { return time.Duration(t - earlier) }
