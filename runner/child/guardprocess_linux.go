package child

import (
	"runtime"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// setThreadName changes what pkill and killall match, if the calling thread is the
// first of the process (PR_SET_NAME(2const)).
func setThreadName(name string) {
	terminated := []byte(name + "\x00")
	_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&terminated[0])), 0)
}

// guardSlack is how late a timer of the guard's other threads may be. Go's runtime has a thread
// (sysmon) that looks at a busy process every 20 µs, which is every 75 µs with Linux's default
// slack. If it finds the guard's first thread in a system call it wakes one more thread, in vain,
// since the guard has nothing else to do. That took 90 µs of processor time for each brief command,
// and with a slack of 1 ms still a tenth of all that pglead each -P 4 took. So the slack is as long
// as a brief command (firstInstants). No other timer of the guard needs more precision: its
// deadlines have a timer of their own (boottime.Alarm), and its first thread has the slack of the
// command.
const guardSlack = 20 * time.Millisecond

// loosenTimers sets the calling thread's slack to guardSlack. All threads of a process that this
// thread starts inherit it (PR_SET_TIMERSLACK(2const)). It returns the previous slack.
func loosenTimers() (before string, restore func()) {
	runtime.LockOSThread()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil {
		before = strconv.Itoa(slack)
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(guardSlack), 0, 0, 0)
	}
	return before, func() {
		setSlack(before)
		runtime.UnlockOSThread()
	}
}

func setSlack(slack string) {
	if ns, err := strconv.Atoi(slack); err == nil {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(ns), 0, 0, 0)
	}
}

// serverHungUp is poll(2)'s event when the other end has ended a connection.
const serverHungUp = unix.POLLRDHUP

// firstInstants waits, for 20 ms at most, until the command is dead or the guard has
// something else to do. brief says that the command is dead and nothing else happened.
func (g *guardProcess) firstInstants() (brief bool) {
	const most = 20 * time.Millisecond
	if g.pidfd < 0 {
		return false // there are no pidfds before Linux 5.2
	}
	fds := []unix.PollFd{
		{Fd: int32(g.pidfd), Events: unix.POLLIN},
		{Fd: int32(g.fd), Events: unix.POLLIN},
		{Fd: int32(g.socket), Events: serverHungUp}, // poll(2) skips a -1
	}
	n, err := unix.Poll(fds, int(max(0, min(most, boottime.Until(g.deadline))).Milliseconds()))
	return err == nil && n == 1 && fds[0].Revents != 0
}

// closed says whether the other end has closed the connection.
func closed(socket int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(socket), Events: serverHungUp}}, 0)
	return err == nil && n > 0 // poll(2) skips a -1
}

// watched is the pidfd of the process whose death the guard waits for, readable once that process
// is dead. That is the command or, after the command's death, one of the guard's own children. The
// guard needs it because a SIGCHLD that comes just before poll(2) does not interrupt it. watched is
// -1 without pidfds (before Linux 5.2), and if the process is dead but can't be reaped, for
// instance because it is traced.
func (g *guardProcess) watched() (pidfd int) {
	if g.pidfd >= 0 || g.command == commandAlive || g.tree == treeKilled {
		return g.pidfd
	}
	pids := g.children()
	if len(pids) == 0 || slices.Contains(pids, g.pidfdOf) {
		return -1
	}
	g.pidfdOf = pids[0]
	if fd, err := unix.PidfdOpen(pids[0], 0); err == nil {
		g.pidfd = fd
	}
	return g.pidfd
}
