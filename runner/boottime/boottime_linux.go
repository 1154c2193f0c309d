// Package boottime reads the clock that leases are measured with: one that
// goes on while the machine is suspended and that nobody can set.
package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since the machine was started, time asleep included. Linux's
// CLOCK_MONOTONIC, and so Go's time package, stops in suspend: a lease that
// ran out at the server meanwhile would seem to be alive (clock_gettime(2)).
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("clock_gettime(CLOCK_BOOTTIME): " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}
