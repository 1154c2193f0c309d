package child

import "slices"

// GuardPID is the guard's process number, for tests that kill it.
func GuardPID(c *Child) int { return c.guard.pid }

// UnusedPID is that of a guard that has no command yet.
func UnusedPID(g *Guard) int { return g.pid }

// HangUp is what the guard sees of this process's death.
func HangUp(c *Child) { c.guard.hangUp() }

// Below are the living descendants of a process, among processes that are given by number and
// parent, except those in skip and what is below them.
func Below(root int, parents map[int]int, skip ...int) (pids []int) {
	var all []process
	for pid, parent := range parents {
		all = append(all, process{pid: pid, parent: parent, state: 'S'})
	}
	for _, p := range below(root, all, skip) {
		pids = append(pids, p.pid)
	}
	slices.Sort(pids)
	return pids
}
