package child

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// commandAttributes has the kernel kill the command when the guard dies. An
// exec of a setuid program takes that back (PR_SET_PDEATHSIG(2const)).
func commandAttributes(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, PidFD: pidfd}
}

// firstInstants waits until the command is dead, or there is anything else for the
// guard to do, or it is over. Many a command is done in less time than it takes to
// have all that delivered to goroutines, and to a longer one it makes no difference.
func (g *guard) firstInstants() {
	const most = 20 * time.Millisecond
	if g.pidfd < 0 {
		return // Linux 5.2
	}
	defer unix.Close(g.pidfd)
	fds := []unix.PollFd{
		{Fd: int32(g.pidfd), Events: unix.POLLIN},
		{Fd: int32(g.fd), Events: unix.POLLIN},
		{Fd: int32(g.socket), Events: unix.POLLRDHUP}, // poll(2) leaves a -1 out
	}
	left := time.Duration(g.req.deadline) - boottime.Now()
	_, _ = unix.Poll(fds, int(max(0, min(most, left)).Milliseconds()))
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
