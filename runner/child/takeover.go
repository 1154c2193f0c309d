package child

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// killGuard kills a guard that doesn't do what it is told. The command dies with
// it, and the rest of its work falls to takeOver.
func (c *Child) killGuard() {
	c.guardMu.Lock()
	defer c.guardMu.Unlock()
	if !c.guardGone && !c.excused {
		_ = unix.Kill(c.guard, unix.SIGKILL)
	}
}

// reapGuard waits for the guard's end. It polls, and holds guardMu only for the
// instant of each poll, so that killGuard can't hit a number that has just become
// free.
func (c *Child) reapGuard() {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, retryMost) {
		c.guardMu.Lock()
		pid, err := unix.Wait4(c.guard, nil, unix.WNOHANG, nil)
		c.guardGone = pid == c.guard || err != nil && !errors.Is(err, unix.EINTR)
		gone := c.guardGone
		c.guardMu.Unlock()
		if gone {
			c.supervisor.forget(c.guard)
			return
		}
		time.Sleep(pause)
	}
}

// takeOver does the guard's work after its death: the kernel has killed the
// command, and this process has inherited the rest of the tree.
func (c *Child) takeOver() {
	c.hangUp()
	c.reapGuard()
	c.result = Result{Ending: Killed, GuardDied: true}
	killCgroup(c.cgroup)
	defer removeCgroup(c.cgroup)
	began, told := time.Now(), false
	for round, pause := 0, retryFirst; ; round, pause = round+1, min(2*pause, retryMost) {
		left := c.supervisor.killOrphans(round%stubbornRounds == stubbornRounds-1)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			if reaped, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); reaped == pid {
				c.result.Killed++
			}
		}
		if !told && time.Since(began) > unkillableAfter {
			told = true
			c.tell(Event{Unkillable: c.supervisor.describeOrphans()})
		}
		time.Sleep(pause)
	}
}

// killOrphans sends SIGKILL to what dead guards have left behind, and returns what
// is not reaped yet. A stubborn tree is stopped first.
func (s *Supervisor) killOrphans(stubborn bool) (left []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.ownChildren()
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

func (s *Supervisor) describeOrphans() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return describe(remains(s.ownChildren()))
}
