package child

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// commandAttributes has the kernel kill the command when the guard dies. An
// exec of a setuid program takes that back (PR_SET_PDEATHSIG(2const)).
func commandAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
}

// setCgroup has the kernel start the command inside of a control group.
func setCgroup(attr *syscall.SysProcAttr, dir *os.File) {
	attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
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
