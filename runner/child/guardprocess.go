package child

import (
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// guardName is the guard's argv[0] and process name. It does not contain "pglead", so
// that pkill pglead leaves the guard alive to clean up.
const guardName = "lease-guard"

// cgroupVariable names the command's control group in the guard's environment.
const cgroupVariable = "CGROUP"

// slackVariable names the timer slack of the command's first thread.
const slackVariable = "SLACK"

// init is the guard's main function. Go initialises packages in the order of their paths, as far as
// their imports allow. So when this runs, net, regexp and most of what only pglead needs are not
// set up yet, and in the guard they never will be. That saves a fifth of the guard's memory, and of
// the time of its start, for which the command waits. Therefore this package must not import them
// (TestGuardStartsEarly in cmd/e2e).
//
// An init runs on the process's first thread (runtime.LockOSThread), so this thread starts the
// command. PR_SET_PDEATHSIG means the death of the *thread* that forked, and the first thread lives
// as long as the guard.
//
// Any program that contains this package can be the guard, tests too.
func init() { //nolint:gochecknoinits // see above
	if len(os.Args) != 5 || os.Args[0] != guardName {
		return
	}
	control, err1 := strconv.Atoi(os.Args[2])
	renewals, err2 := strconv.Atoi(os.Args[3])
	socket, err3 := strconv.Atoi(os.Args[4])
	if err1 != nil || err2 != nil || err3 != nil {
		syscall.Exit(70)
	}
	setThreadName(guardName)           // also the process's name
	setSlack(os.Getenv(slackVariable)) // this thread's slack, and so the command's
	g, err := newGuardProcess(control, renewals, socket, os.Getenv(cgroupVariable))
	for again := err == nil; again; {
		again = g.start() && g.untilDead()
	}
	syscall.Exit(0) // os.Exit sleeps for a second under the race detector
}

// guardProcess is the process between pglead and the command. It is the parent of all
// that the command leaves behind. It holds the lock's socket open until all of that is
// dead, so the lock outlives pglead until then.
type guardProcess struct {
	fd       int            // this end of the socket pair
	renewals int            // the pipe with new deadlines
	socket   int            // a duplicate of the lock's socket, or -1
	alarm    boottime.Alarm // for commandTree.deadline, and then for commandTree.graceEnd

	// The control group of its commands. When a command has ended the group is empty, or else the
	// guard ends, too, so the next command can have the same group. To make and remove a group for
	// each command would take a quarter of the time of a fork. (If a command writes a limit into
	// the group's own files, such as pids.max, the limit holds for the next one, too.)
	cgroup     string   // or empty
	cgroupDir  *os.File // or nil
	cgroupKill int      // the group's cgroup.kill, or -1

	// The list of its children, or -1. Like cgroupKill it is open from the start: when the guard
	// has to kill, it or the whole machine may be out of descriptors.
	childList int

	resetStop    func() // gives SIGTSTP the action that the command should inherit
	leftSession  bool   // it has left pglead's session
	orphaned     bool   // pglead is gone
	socketClosed bool   // the server has closed the socket

	commandTree
}

// commandTree is what a guard knows of one command and all that it started. It is made anew for
// each command, so nothing of the previous one is left.
type commandTree struct {
	spec   Spec
	report doneReport

	// The command:
	pid         int
	reaped      bool // so another process may have the number
	command     commandState
	leftoversAt time.Time // when endLeftovers is due, or zero

	// The process whose death the guard waits for: the command, and then one of its own children
	// (watched).
	pidfd   int // or -1
	pidfdOf int // that child

	// The tree:
	tree     treeState
	deadline boottime.Instant // the last one that was read
	graceEnd boottime.Instant // in treeEnds: when the tree gets SIGKILL

	// Its kill, round by round (killRound):
	killedAt           time.Time // when it began
	retryAt            time.Time
	rounds             int
	unkillableReported bool
}

// newGuardProcess makes this process a guard. cgroup is the control group that it makes for its
// commands if it may, or empty. It makes the group before there is a request.
func newGuardProcess(control, renewals, socket int, cgroup string) (*guardProcess, error) {
	unix.CloseOnExec(control)
	unix.CloseOnExec(renewals)
	if socket >= 0 {
		unix.CloseOnExec(socket)
	}
	if err := becomeSubreaper(); err != nil {
		return nil, err
	}
	// A signal may go to the whole group, session or control group. pglead acts on it, so the guard
	// ignores it. The command gets the action that pglead was started with.
	discardSignals()
	g := &guardProcess{
		fd:       control,
		renewals: renewals,
		socket:   socket,

		resetStop:   ignoreStop(unix.SIGTSTP),
		childList:   openChildList(),
		commandTree: newCommandTree(),
	}
	if g.cgroupDir, g.cgroupKill = makeCgroup(cgroup); g.cgroupDir != nil {
		g.cgroup = cgroup
	}
	var err error
	if g.alarm, err = boottime.NewAlarm(); err != nil {
		return nil, err
	}
	return g, nil
}

func newCommandTree() commandTree { return commandTree{pidfd: -1} }

// untilDead waits until the command and all that it started are dead and reaped, and then sees to
// the lock's connection. It returns true if the guard can have another command: only if the command
// exited by itself in its first instants (firstInstants), and nothing else happened. Otherwise it
// returns once pglead has hung up.
func (g *guardProcess) untilDead() (again bool) {
	brief := g.awaitDeath()
	g.leaveSocket()
	if brief && g.spec.KeepGuard && g.report.Status.Exited() {
		g.report.Idle = true // see reuse.go
	}
	err := g.reportDeath()
	if err == nil && g.report.Idle {
		return true
	}
	for err == nil { // pglead hangs up when it has read the report
		_, _, err = readMessage(blocking{g.fd})
	}
	g.releaseUntold(err)
	return false
}

// awaitDeath waits until all are dead and reaped, kills them if need be, and says whether the
// command was brief.
func (g *guardProcess) awaitDeath() (brief bool) {
	brief = g.firstInstants()
	for !g.reapChildren() {
		brief = false
		if g.tree == treeKilled {
			g.killRound()
		}
		g.await()
	}
	if g.pidfd >= 0 {
		_ = unix.Close(g.pidfd)
	}
	return brief
}

// reportDeath tells pglead that the tree is dead. If pglead is stopped, and its socket full, the
// end of the connection comes first.
func (g *guardProcess) reportDeath() error {
	err := writeMessage(impatient{g.fd}, msgDone, g.report.encode())
	if !g.report.Idle || err != nil {
		removeCgroup(g.cgroup)
	}
	g.endConnection()
	if errors.Is(err, unix.EAGAIN) {
		err = writeMessage(blocking{g.fd}, msgDone, g.report.encode())
	}
	return err
}

// waitMost limits each wait. If a SIGCHLD was missed, the guard notices a stopped command, or a
// dead orphan, that much later at most.
const waitMost = 10 * time.Second

// await waits for whatever comes first, and deals with it. SIGCHLD interrupts the wait, too.
//
// It waits on this thread for everything, without goroutines. Each goroutine that waits in the
// kernel needs a thread. If the command has used up its user's threads, Go's runtime would end the
// process.
func (g *guardProcess) await() {
	alarm, most := g.alarm.Poll()
	fds := []unix.PollFd{ // poll(2) skips what is below 0
		{Fd: pollFd(g.fd, g.orphaned), Events: unix.POLLIN},
		{Fd: pollFd(g.socket, g.socketClosed || serverHungUp == 0), Events: serverHungUp},
		{Fd: int32(alarm), Events: unix.POLLIN},
		{Fd: int32(g.watched()), Events: unix.POLLIN},
	}
	most = min(most, waitMost)
	if fds[3].Fd < 0 {
		most = min(most, retryMost) // there is no pidfd, so a missed signal may be a death
	}
	for _, at := range []time.Time{g.leftoversAt, g.retryAt} {
		if !at.IsZero() {
			most = min(most, time.Until(at))
		}
	}
	_, _ = unix.Poll(fds, int(max(0, most.Milliseconds())+1))
	if fds[0].Revents != 0 {
		g.obey()
	}
	if fds[1].Revents != 0 {
		g.socketClosed = true
		g.endForLoss(SocketClosed)
	}
	if g.alarm.Rings() {
		g.checkTime()
	}
	if fds[3].Revents != 0 {
		_ = unix.Close(g.pidfd)
		g.pidfd = -1
		g.commandDied() // if it is not the command that is watched, that is dead already
	}
	if !g.leftoversAt.IsZero() && !time.Now().Before(g.leftoversAt) {
		g.endLeftovers()
	}
}

// pollFd is fd for poll(2) or, to have poll(2) skip it, -1.
func pollFd(fd int, skip bool) int32 {
	if skip {
		return -1
	}
	return int32(fd)
}

// obey does what pglead says next.
func (g *guardProcess) obey() {
	k, body, err := readMessage(blocking{g.fd})
	if err != nil {
		g.orphaned = true
		g.beginKill(pgleadGone)
		return
	}
	switch k {
	case msgSignal:
		g.signal(unix.Signal(number(body)))
	case msgKill:
		g.beginKill(ByOrder)
	case msgLost:
		g.endForLoss(ByOrder)
	}
}

// checkTime is called when the alarm has rung. The deadline may have moved since the
// alarm was set.
func (g *guardProcess) checkTime() {
	due := g.graceEnd
	if g.tree == treeRuns {
		g.readRenewals()
		due = g.deadline
	}
	switch {
	case boottime.Now() < due:
		_ = g.alarm.Set(due)
	case g.tree == treeRuns:
		g.endForLoss(LeaseOver)
	default:
		g.beginKill(LeaseOver)
	}
}

// readRenewals empties the pipe with new deadlines. The last one becomes the deadline.
func (g *guardProcess) readRenewals() {
	var deadlines [512]byte
	for {
		n, err := unix.Read(g.renewals, deadlines[:])
		if err == unix.EINTR {
			continue
		}
		if n < 8 { // none is left, or pglead is gone
			return
		}
		g.deadline = boottime.Instant(binary.NativeEndian.Uint64(deadlines[n-8 : n]))
	}
}

// tell sends pglead a message that it can do without. If pglead is stopped and its socket
// full, tell drops the message: the guard has to go on, to notice that the deadline has
// passed.
func (g *guardProcess) tell(k kind, body []byte) { _ = writeMessage(impatient{g.fd}, k, body) }
