package child

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// becomeSubreaper: procctl(2), PROC_REAP_ACQUIRE.
func becomeSubreaper() error {
	const (
		processID   = 0 // P_PID
		reapAcquire = 2 // PROC_REAP_ACQUIRE
	)
	_, _, errno := unix.Syscall6(unix.SYS_PROCCTL, processID, 0, reapAcquire, 0, 0, 0)
	if errno != 0 && errno != unix.EBUSY { // EBUSY: it is one already
		return errno
	}
	return nil
}

// commandAttributes puts the command into a process group and has the kernel
// kill it when the guard dies (PROC_PDEATHSIG_CTL).
func commandAttributes(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: syscall.SIGKILL}
}
