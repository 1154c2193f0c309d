package child

import (
	"time"

	"golang.org/x/sys/unix"
)

// finishFor does the rest of a dead guard's work: the kernel has killed the command,
// and this process has inherited what was below it. It returns how many processes it
// reaped, and names those that SIGKILL doesn't reach to unkillable.
func (gs *Guards) finishFor(g *Guard, unkillable func(names string)) (killed int) {
	g.hangUp()
	g.reap()
	killCgroup(g.cgroup)
	defer removeCgroup(g.cgroup)
	began, told := time.Now(), false
	for round, pause := 0, retryFirst; ; round, pause = round+1, min(2*pause, retryMost) {
		left := gs.killOrphans(round%stubbornRounds == stubbornRounds-1)
		if len(left) == 0 {
			return killed
		}
		for _, pid := range left {
			if reaped, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); reaped == pid {
				killed++
			}
		}
		if !told && time.Since(began) > unkillableAfter {
			told = true
			unkillable(gs.describeOrphans())
		}
		time.Sleep(pause)
	}
}

// killOrphans sends SIGKILL to what dead guards have left behind, and returns what
// is not reaped yet. A stubborn tree is stopped first.
func (gs *Guards) killOrphans(stubborn bool) (left []int) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	own := gs.ownChildren()
	if stubborn {
		stopDescendants(own)
	}
	left = killChildren(own)
	if len(left) == 0 && len(own) > 0 {
		// The kernel says for certain only that there are no children at all. The
		// list that was read here may lack a child while another is reaped (proc(5)).
		left = killChildren(own)
	}
	return left
}

func (gs *Guards) describeOrphans() string {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	return describe(remains(gs.ownChildren()))
}
