package child

import (
	"cmp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

const (
	// leftoverPatience is how long processes may outlive the command before they count
	// as left over: a `tee` at the end of a pipe needs an instant to see that its writer
	// is gone.
	leftoverPatience = 200 * time.Millisecond
	// leftoverTerm is the time that leftovers have between SIGTERM and SIGKILL.
	leftoverTerm = 5 * time.Second
)

// treeState says how far the end of the tree has come. It only goes forward. The first step notes
// in the report why the tree ended.
//
//	treeRuns    → treeEnds     the lock is lost, or may be, and there is a grace
//	treeRuns    → treeKilled   the same without a grace; pglead is gone, or asks for it;
//	                           leftovers have had their time
//	treeEnds    → treeKilled   the grace is over; pglead is gone, or asks for it;
//	                           leftovers have had their time
//	treeKilled                 goes on in rounds, until the whole tree is reaped
type treeState int

const (
	treeRuns treeState = iota
	treeEnds
	treeKilled
)

// commandState is what has become of the command itself, in any state of its tree.
//
//	commandAlive   → commandDead      it is dead: its pidfd says so, also if a debugger keeps it
//	                                  from being reaped; or it is reaped
//	commandDead    → leftoversAsked   leftoverPatience later: what is left gets SIGTERM;
//	                                  not with WaitForLeftovers
//	leftoversAsked                    leftoverTerm later the tree is killed
type commandState int

const (
	commandAlive commandState = iota
	commandDead
	leftoversAsked
)

// enter moves the tree on to a state.
func (g *guardProcess) enter(next treeState, why Ending) {
	if g.tree == treeRuns {
		g.report.Ending = why
	}
	g.tree = next
}

// endForLoss ends the tree because the lock is lost, or may be. With a grace the command
// gets SIGTERM first, and the whole tree gets SIGKILL when the grace is over.
func (g *guardProcess) endForLoss(why Ending) {
	if g.tree != treeRuns {
		return
	}
	g.readRenewals()
	g.graceEnd = g.spec.graceEnd(g.deadline)
	if g.graceEnd <= boottime.Now() || g.alarm.Set(g.graceEnd) != nil {
		g.beginKill(why)
		return
	}
	g.enter(treeEnds, why)
	g.askToEnd()
}

// beginKill begins to kill the tree; awaitDeath goes on with it, in rounds.
func (g *guardProcess) beginKill(why Ending) {
	if g.tree != treeKilled {
		g.enter(treeKilled, why)
		g.killedAt = time.Now()
	}
}

// killRound is one round of the kill.
func (g *guardProcess) killRound() {
	if g.rounds%stubbornRounds == 0 {
		_, _ = unix.Write(g.cgroupKill, []byte(killWord)) // EBADF if there is none
	}
	killBelow(g.rounds, g.children, nil)
	if g.command == commandAlive {
		_ = unix.Kill(g.pid, unix.SIGKILL) // the children may be unknown, for want of descriptors
	}
	g.rounds++
	g.retryAt = time.Now().Add(min(retryFirst<<min(g.rounds, 10), retryMost))
	if !g.unkillableReported && time.Since(g.killedAt) > unkillableAfter {
		g.unkillableReported = true
		g.tell(msgUnkillable, []byte(nameProcs(survivors(nil), proc.keptAlive)))
	}
}

// askToEnd sends SIGTERM, and SIGCONT, without which a stopped process would not notice it.
func (g *guardProcess) askToEnd() {
	g.signal(unix.SIGTERM)
	g.signal(unix.SIGCONT)
}

// signal signals the command or, if that has ended, all that it left running.
func (g *guardProcess) signal(sig unix.Signal) {
	if g.command == commandAlive {
		_ = unix.Kill(g.pid, sig)
		return
	}
	signalAll(survivors(nil), sig)
}

// reapChildren collects dead children. It returns true if no child is left, dead or alive.
func (g *guardProcess) reapChildren() bool {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECHILD:
			return true
		case err != nil: // the system refuses the call, so only pglead can see to the end: it keeps the lock until then
			syscall.Exit(1)
		case pid == 0:
			return false
		case status.Stopped():
			if g.isCommand(pid) {
				g.tell(msgStopped, nil)
			}
			continue
		}
		if g.tree == treeKilled && status.Signaled() { // the others exited by themselves just then
			g.report.Killed++
		}
		if g.isCommand(pid) {
			g.reaped = true
			g.report.Status = status
			g.commandDied()
		}
	}
}

// isCommand says whether a child is the command.
func (g *guardProcess) isCommand(pid int) bool { return pid == g.pid && !g.reaped }

// commandDied notes, once, that the command is dead. What it left running has leftoverPatience from
// now on.
func (g *guardProcess) commandDied() {
	if g.command == commandAlive {
		g.command = commandDead
		g.leftoversAt = time.Now().Add(leftoverPatience)
	}
}

// endLeftovers deals with processes that outlive the command. It asks the kernel whether there
// are any (reapChildren): reading the process table takes a while, and so would miss processes
// that fork and exit all the time.
func (g *guardProcess) endLeftovers() {
	g.leftoversAt = time.Time{}
	switch {
	case g.tree == treeKilled || g.reapChildren():
	case g.command == leftoversAsked:
		g.beginKill(Exited)
	default:
		g.tell(msgLeftovers, []byte(cmp.Or(nameProcs(survivors(nil), nil), "processes that are gone before they can be named")))
		if g.spec.WaitForLeftovers {
			return
		}
		g.askToEnd()
		g.command = leftoversAsked
		g.leftoversAt = time.Now().Add(leftoverTerm)
	}
}
