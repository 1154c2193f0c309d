package child

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// The guard's own times.
const (
	// leftoverPatience is how long processes may outlive the command before
	// they count as left over: a `tee` at the end of a pipe needs an instant
	// to see that its writer is gone.
	leftoverPatience = 200 * time.Millisecond
	// leftoverTerm is what leftovers get between SIGTERM and SIGKILL.
	leftoverTerm = 5 * time.Second
	// A kill that has not emptied the tree is repeated after retryFirst,
	// then at twice the interval, up to retryMost.
	retryFirst = time.Millisecond
	retryMost  = 100 * time.Millisecond
	// After stubbornRounds rounds the tree is taken to fork faster than it is
	// killed; after unkillableAfter what is left is reported.
	stubbornRounds  = 30
	unkillableAfter = time.Second
)

// lose ends the tree because the lock is lost, or may be: SIGTERM for the
// command if there is a grace, and SIGKILL for all when it is over. However
// long the grace, it ends while the server still counts the lease: if it has
// not given the lock to anyone yet, it will then.
func (g *guard) lose(why Ending) {
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

func (g *guard) end(why Ending) {
	if g.killing {
		return
	}
	if !g.losing {
		g.report.ending = why
	}
	g.kill()
}

func (g *guard) kill() {
	if !g.killing {
		g.killing = true
		g.killedAt = time.Now()
	}
}

// killRound kills the direct children. Theirs become direct children by that,
// and the next round's.
func (g *guard) killRound() {
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

// signal is for the command or, when it has ended, for all that it left.
func (g *guard) signal(sig unix.Signal) {
	if !g.exited {
		_ = unix.Kill(g.pid, sig)
		return
	}
	for _, p := range remains(nil) {
		signalDescendant(p, sig)
	}
}

// reap collects dead children and says whether none is left, dead or alive.
func (g *guard) reap() bool {
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

// endLeftovers deals with what outlived the command. That there is anything is
// the kernel's word (reap): the process table, which is not read in an instant,
// shows nothing of what forks and exits all the time.
func (g *guard) endLeftovers() {
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
