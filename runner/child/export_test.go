package child

import (
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// GuardPID is the guard's process number, for tests that kill it.
func GuardPID(c *Child) int { return c.guard.pid }

// UnusedPID is the process number of a guard without a command.
func UnusedPID(g *Guard) int { return g.pid }

// Listed are the process numbers of the guards that are not known to have ended.
func Listed(p *Parent) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.guards)
}

// AskToStart asks a guard to start a command, as StartCommand does in a process that is stopped
// after it has looked at the time, and ends the guard.
func AskToStart(g *Guard, spec Spec) error {
	err := writeMessage(g.control, msgStart, g.encoded(spec))
	if err == nil {
		_, _, err = g.awaitStart(&startAnswer{}, spec)
	}
	g.hangUp()
	g.reap()
	return err
}

// VanishUntold starts a command, and does what the guard would see if this process died when the
// command is dead, and the report of that unread.
func VanishUntold(g *Guard, spec Spec) error {
	err := writeMessage(g.control, msgStart, g.encoded(spec))
	if err == nil {
		_, _, err = g.awaitStart(&startAnswer{}, spec)
	}
	if err == nil {
		var raw syscall.RawConn
		if raw, err = g.control.SyscallConn(); err == nil {
			err = raw.Read(func(fd uintptr) bool {
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
				return err == nil && n == 1
			})
		}
	}
	g.hangUp()
	g.reap()
	return err
}

// VanishStarting does what the guard would see if this process died while it starts a command.
func VanishStarting(g *Guard, spec Spec) error {
	if err := unix.Kill(g.pid, unix.SIGSTOP); err != nil {
		return err
	}
	err := writeMessage(g.control, msgStart, g.encoded(spec))
	g.hangUp()
	_ = unix.Kill(g.pid, unix.SIGCONT)
	g.reap()
	return err
}

// HangUp does what the guard would see if this process died.
func HangUp(c *Child) { c.guard.hangUp() }

// Below lists the living descendants of a process, except those in skip and what is below them.
// parents has the parent of each process.
func Below(root int, parents map[int]int, skip ...int) (pids []int) {
	var all []proc
	for pid, parent := range parents {
		all = append(all, proc{pid: pid, parent: parent, state: 'S'})
	}
	for _, p := range below(root, all, skip) {
		pids = append(pids, p.pid)
	}
	slices.Sort(pids)
	return pids
}

// GiveNoGroups lets the guards make no control groups, as where they may not.
func GiveNoGroups(p *Parent) { p.cgroup = func() string { return "" } }

// KillUnlisted kills a command as a guard does that has neither a control group nor a list of its
// children.
func KillUnlisted(pid int) {
	g := guardProcess{childList: -1, cgroupKill: -1, commandTree: newCommandTree()}
	g.pid, g.killedAt = pid, time.Now()
	g.killRound()
}

// ReapAfter reaps this process's dead children as a guard does whose command, with this number, was
// reaped before, and returns the status of that command.
func ReapAfter(command int, status unix.WaitStatus) unix.WaitStatus {
	g := guardProcess{commandTree: newCommandTree()}
	g.pid, g.reaped, g.command, g.report.Status = command, true, commandDead, status
	g.reapChildren()
	return g.report.Status
}

// SignalBelow signals a process that was listed as the child of a parent.
func SignalBelow(pid, parent int, sig unix.Signal) {
	signalDescendant(proc{pid: pid, parent: parent}, sig)
}

// LoseTwice tells a guard of a command twice that the lock is lost, and returns when the grace ends
// after each.
func LoseTwice(command int, grace time.Duration) (first, second boottime.Instant) {
	alarm, err := boottime.NewAlarm()
	if err != nil {
		panic(err)
	}
	g := guardProcess{renewals: -1, alarm: alarm, commandTree: newCommandTree()}
	g.pid, g.deadline, g.spec.LostGrace = command, boottime.Now().Add(time.Hour), grace
	g.endForLoss(ByOrder)
	first = g.graceEnd
	g.endForLoss(SocketClosed)
	return first, g.graceEnd
}

// ReapInKill reaps this process's dead children as a guard does that kills, and returns how many it
// counts as killed.
func ReapInKill() int {
	g := guardProcess{commandTree: newCommandTree()}
	g.tree = treeKilled
	g.reapChildren()
	return int(g.report.Killed)
}
