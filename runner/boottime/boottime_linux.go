package boottime

import (
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// clock counts the time asleep. Linux's CLOCK_MONOTONIC, and so Go's time package,
// stops in suspend: a lease that ran out at the server meanwhile would seem to be alive
// (clock_gettime(2)).
const clock = unix.CLOCK_BOOTTIME

// Timer waits for an instant of the clock, awake or asleep. If that instant passes while the
// machine is suspended, it fires on resume.
//
// To Go's runtime it is a file, not a timer: before each of its own timers the runtime
// wakes a thread (sysmon), which then checks every 20 µs whether there
// is anything to do. For a process that does a little every few seconds that was half
// of the processor time.
type Timer struct{ file *os.File }

// NewTimer returns a timer that isn't set.
func NewTimer() (Timer, error) {
	a, err := NewAlarm()
	if err != nil {
		return Timer{}, err
	}
	return Timer{os.NewFile(uintptr(a.fd), "timer")}, nil
}

// Set makes the timer fire when the clock shows at, and no longer at the time that was
// set before.
func (t Timer) Set(at Instant) error {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	if err := raw.Control(func(fd uintptr) { setErr = set(int(fd), at) }); err != nil {
		return err
	}
	return setErr
}

// Wait waits until the timer has fired since the last Wait, or fails when it is
// stopped.
func (t Timer) Wait() error {
	var times [8]byte
	_, err := t.file.Read(times[:])
	return err
}

// Stop frees the timer.
func (t Timer) Stop() { _ = t.file.Close() }

// Alarm is a Timer for a thread that waits by poll(2).
type Alarm struct{ fd int }

// NewAlarm returns an alarm that isn't set.
func NewAlarm() (Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return Alarm{}, fmt.Errorf("timerfd_create: %w", err)
	}
	return Alarm{fd}, nil
}

// Set makes the alarm ring when the clock shows at, and no longer at the time that was set
// before.
func (a *Alarm) Set(at Instant) error { return set(a.fd, at) }

// Poll is what to give to poll(2): a descriptor, which is readable when the alarm rings, or -1, and
// how long poll may wait at most.
func (a *Alarm) Poll() (fd int, most time.Duration) { return a.fd, math.MaxInt64 }

// Rings says whether the alarm has rung since it was last asked.
func (a *Alarm) Rings() bool {
	var times [8]byte
	n, _ := unix.Read(a.fd, times[:])
	return n == len(times)
}

func set(fd int, at Instant) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, int64(at)))}
	return unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &spec, nil)
}
