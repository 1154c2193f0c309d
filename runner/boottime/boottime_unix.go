//go:build unix && !linux

// Package boottime reads the clock that leases are measured with: one that
// goes on while the machine is suspended and that nobody can set.
package boottime

import (
	"os"
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

// Timer waits for an instant of the clock, or longer by the time asleep.
type Timer struct {
	timer   *time.Timer
	stopped chan struct{}
}

// NewTimer returns a timer that isn't set.
func NewTimer() (Timer, error) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return Timer{timer, make(chan struct{})}, nil
}

// Set has the timer fire when the clock shows at, and no more at what was set
// before.
func (t Timer) Set(at time.Duration) error {
	t.timer.Reset(max(0, at-Now()))
	return nil
}

// Wait waits until the timer has fired since the last Wait, or fails when it is
// stopped.
func (t Timer) Wait() error {
	select {
	case <-t.timer.C:
		return nil
	case <-t.stopped:
		return os.ErrClosed
	}
}

// Stop frees the timer.
func (t Timer) Stop() {
	t.timer.Stop()
	close(t.stopped)
}
