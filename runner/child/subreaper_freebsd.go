package child

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// becomeSubreaper makes this process the parent of every descendant whose own
// parent dies (procctl(2), PROC_REAP_ACQUIRE).
func becomeSubreaper() error {
	const (
		processID   = 0 // P_PID
		reapAcquire = 2 // PROC_REAP_ACQUIRE
	)
	_, _, errno := unix.Syscall6(unix.SYS_PROCCTL, processID, 0, reapAcquire, 0, 0, 0)
	if errno != 0 && errno != unix.EBUSY { // EBUSY: it is already a reaper
		return errno
	}
	return nil
}

// commandAttributes makes the kernel kill the command when the guard dies
// (procctl(2), PROC_PDEATHSIG_CTL).
func commandAttributes(*int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// guardAttributes make the kernel send SIGCONT to the guard when this process dies, so that a
// stopped guard goes on.
func guardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGCONT} }
