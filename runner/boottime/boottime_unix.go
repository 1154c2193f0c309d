//go:build unix && !linux

package boottime

import (
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// clock counts the time asleep on macOS and FreeBSD (clock_gettime(3) there).
const clock = unix.CLOCK_MONOTONIC

// Timer waits for an instant of the clock. If the machine sleeps meanwhile, it fires later by that
// time.
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

// Set makes the timer fire when the clock shows at, and no longer at the time that was
// set before.
func (t Timer) Set(at Instant) error {
	t.timer.Reset(max(0, Until(at)))
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

// Alarm is a Timer for a thread that waits by poll(2).
type Alarm struct{ at Instant }

// NewAlarm returns an alarm that isn't set.
func NewAlarm() (Alarm, error) { return Alarm{math.MaxInt64}, nil }

// Set makes the alarm ring when the clock shows at, and no longer at the time that was set
// before.
func (a *Alarm) Set(at Instant) error {
	a.at = at
	return nil
}

// Poll is what to give to poll(2): a descriptor, which is readable when the alarm rings, or -1, and
// how long poll may wait at most.
func (a *Alarm) Poll() (fd int, most time.Duration) { return -1, Until(a.at) }

// Rings says whether the alarm has rung since it was last asked.
func (a *Alarm) Rings() bool {
	if Now() < a.at {
		return false
	}
	a.at = math.MaxInt64
	return true
}
