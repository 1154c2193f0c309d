//go:build unix && !linux

// Package boottime reads the clock that leases are measured with: one that
// goes on while the machine is suspended and that nobody can set.
package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since the machine was started. The monotonic clocks of
// macOS and FreeBSD count time asleep (clock_gettime(3) there).
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock_gettime(CLOCK_MONOTONIC): " + err.Error())
	}
	return time.Duration(ts.Nano())
}
