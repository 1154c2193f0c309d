package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// commandAttributes puts the command into a process group and has the kernel
// kill it when the guard dies. An exec of a setuid program takes the latter
// back (PR_SET_PDEATHSIG(2const)).
func commandAttributes(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group, Pdeathsig: unix.SIGKILL}
}

// selfExe is this program even if its file has been replaced or removed since.
func selfExe() string {
	const link = "/proc/self/exe"
	if _, err := os.Lstat(link); err == nil {
		return link
	}
	path, _ := os.Executable()
	return path
}

func isStopped(pid int) bool {
	p, ok := readProcess(pid)
	return ok && p.state == 'T'
}

func realTimeSignals() []os.Signal {
	var list []os.Signal
	// glibc keeps 32 and 33 for itself (signal(7)).
	for n := 34; n <= 64; n++ {
		list = append(list, unix.Signal(n))
	}
	return list
}
