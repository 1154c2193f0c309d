package child

import (
	"slices"
	"time"
)

// GuardPID is the guard's process number, for tests that kill it.
func GuardPID(c *Child) int { return c.guard.pid }

// UnusedPID is the process number of a guard without a command.
func UnusedPID(g *Guard) int { return g.pid }

// AskToStart asks a guard to start a command, as StartCommand does in a process that is stopped after
// it has looked at the time, and ends the guard.
func AskToStart(g *Guard, cfg Config) error {
	err := writeMessage(g.control, msgStart, g.request(cfg))
	if err == nil {
		_, _, err = g.awaitStart(&startAnswer{}, cfg)
	}
	g.hangUp()
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
func GiveNoGroups(gs *Guards) { gs.cgroup = func() string { return "" } }

// KillUnlisted kills a command as a guard does that has neither a control group nor a list of its
// children.
func KillUnlisted(pid int) {
	g := guardProcess{childList: -1, cgroupKill: -1, commandTree: newCommandTree()}
	g.pid, g.killedAt = pid, time.Now()
	g.killRound()
}

// ReapInKill reaps this process's dead children as a guard does that kills, and returns how many it
// counts as killed.
func ReapInKill() int {
	g := guardProcess{commandTree: newCommandTree()}
	g.tree = treeKilled
	g.reapChildren()
	return int(g.report.Killed)
}
