package child

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// becomeSubreaper makes this process the parent of every descendant whose own
// parent dies, daemons that forked twice included (PR_SET_CHILD_SUBREAPER(2)).
// That is why a tree can be killed whole: each process of it ends up as a child here.
func becomeSubreaper() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// commandAttributes has the kernel kill the command when the guard dies. An
// exec of a setuid program takes that back (PR_SET_PDEATHSIG(2const)).
func commandAttributes(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, PidFD: pidfd}
}
