package child

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

const (
	// leftoverPatience is how long processes may outlive the command before
	// they count as left over: a `tee` at the end of a pipe needs an instant
	// to see that its writer is gone.
	leftoverPatience = 200 * time.Millisecond
	// leftoverTerm is the time that leftovers have between SIGTERM and SIGKILL.
	leftoverTerm = 5 * time.Second
)

// lose ends the tree because the lock is lost, or may be: the command gets SIGTERM
// if there is a grace, and all get SIGKILL when it is over. However long the grace
// is, it ends before the lease that the server counts, at whose end somebody else may
// be given the lock.
func (g *guardProcess) lose(why Ending) {
	if g.losing || g.killing {
		return
	}
	g.renew()
	now := int64(boottime.Now())
	killAt := min(now+g.req.lostGrace, g.req.deadline+g.req.leaseGrace)
	if killAt <= now || g.deadline.Set(time.Duration(killAt)) != nil {
		g.end(why)
		return
	}
	g.losing = true
	g.report.ending = why
	g.req.deadline = killAt
	g.signal(unix.SIGTERM)
	g.signal(unix.SIGCONT)
}

// end ends the tree at once.
func (g *guardProcess) end(why Ending) {
	if g.killing {
		return
	}
	if !g.losing {
		g.report.ending = why
	}
	g.kill()
}

func (g *guardProcess) kill() {
	if !g.killing {
		g.killing = true
		g.killedAt = time.Now()
	}
}

// killRound kills the direct children. By that their children become direct ones,
// which the next round kills.
func (g *guardProcess) killRound() {
	if g.rounds%stubbornRounds == 0 {
		killCgroup(g.cgroup)
	}
	if g.rounds%stubbornRounds == stubbornRounds-1 {
		stopDescendants(nil)
	}
	killChildren(nil)
	g.rounds++
	g.retry = time.After(min(retryFirst<<min(g.rounds, 10), retryMost))
	if !g.complained && time.Since(g.killedAt) > unkillableAfter {
		g.complained = true
		g.tell(msgUnkillable, []byte(describe(remains(nil))))
	}
}

// signal signals the command or, when that has ended, all that it left running.
func (g *guardProcess) signal(sig unix.Signal) {
	if !g.exited {
		_ = unix.Kill(g.pid, sig)
		return
	}
	for _, p := range remains(nil) {
		signalDescendant(p, sig)
	}
}

// reap collects dead children and says whether none is left, dead or alive.
func (g *guardProcess) reap() bool {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD
			return true
		case pid == 0:
			return false
		case status.Stopped():
			if pid == g.pid {
				g.tell(msgStopped, binary.BigEndian.AppendUint64(nil, uint64(status.StopSignal())))
			}
			continue
		}
		if g.killing {
			g.report.killed++
		}
		if pid == g.pid {
			g.exited = true
			g.report.status = uint32(status)
			g.leftovers = time.After(leftoverPatience)
		}
	}
}

// endLeftovers deals with what outlives the command. Whether there is anything, it
// asks the kernel (reap): the process table can't be read in an instant, and so
// does not show what forks and exits all the time.
func (g *guardProcess) endLeftovers() {
	g.leftovers = nil
	switch {
	case g.killing || g.reap():
	case g.terminated:
		g.kill()
	default:
		g.tell(msgLeftovers, []byte(describe(remains(nil))))
		if g.req.waitForAll != 0 {
			return
		}
		g.signal(unix.SIGTERM)
		g.signal(unix.SIGCONT)
		g.terminated = true
		g.leftovers = time.After(leftoverTerm)
	}
}
