package child

import "slices"

// GuardPID is the guard's process number, for tests that kill it.
func GuardPID(c *Child) int { return c.guard.pid }

// UnusedPID is the process number of a guard without a command.
func UnusedPID(g *Guard) int { return g.pid }

// HangUp does what the guard would see if this process died.
func HangUp(c *Child) { c.guard.hangUp() }

// Below lists the living descendants of a process, except those in skip and what is below them.
// parents has the parent of each process.
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
