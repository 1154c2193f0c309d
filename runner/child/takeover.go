package child

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// killGuard is for a guard that doesn't do what it is told: its work falls to
// this process then.
func (c *Child) killGuard() {
	c.guardMu.Lock()
	defer c.guardMu.Unlock()
	if !c.guardGone && !c.excused {
		_ = unix.Kill(c.guard, unix.SIGKILL)
	}
}

// reapGuard waits for the guard's end. It looks again and again, with the lock
// held for the look, so that killGuard can't hit a number that has just become
// free.
func (c *Child) reapGuard() {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, retryMost) {
		c.guardMu.Lock()
		pid, err := unix.Wait4(c.guard, nil, unix.WNOHANG, nil)
		c.guardGone = pid == c.guard || err != nil && !errors.Is(err, unix.EINTR)
		gone := c.guardGone
		c.guardMu.Unlock()
		if gone {
			c.guards.forget(c.guard)
			return
		}
		time.Sleep(pause)
	}
}

// takeOver does the guard's work after its death: the command has got its
// SIGKILL from the kernel, and this process has inherited the rest.
func (c *Child) takeOver() {
	c.hangUp()
	c.reapGuard()
	c.result = Result{Ending: Killed, GuardDied: true}
	killCgroup(c.cgroup)
	defer removeCgroup(c.cgroup)
	began, told := time.Now(), false
	for round, pause := 0, retryFirst; ; round, pause = round+1, min(2*pause, retryMost) {
		left := c.guards.killOrphans(round%stubbornRounds == stubbornRounds-1)
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
			c.guards.mu.Lock()
			c.tell(Event{Unkillable: describe(remains(c.guards.kin()))})
			c.guards.mu.Unlock()
		}
		time.Sleep(pause)
	}
}

// killOrphans sends SIGKILL to what dead guards have left behind, and says what
// that was.
func (gs *Guards) killOrphans(stubborn bool) []int {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	kin := gs.kin()
	if stubborn {
		stopDescendants(kin)
	}
	left := killChildren(kin)
	if len(left) == 0 && len(kin) > 0 {
		// Where there are no other children the kernel has said so. Else this was
		// read from a list that may leave one out while another is reaped (proc(5)).
		left = killChildren(kin)
	}
	return left
}
