package child

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
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

// init is the guard's main function. Go initialises packages in the order of their paths,
// as far as their imports allow. So net, regexp and most of what only pglead needs are
// not set up yet, and never will be. That saves a fifth of the guard's memory and of its
// start, for which the command waits. So this package must not import them
// (TestGuardStartsEarly).
//
// An init runs on the process's first thread (runtime.LockOSThread), and this thread
// starts the command: PR_SET_PDEATHSIG means the death of the *thread* that forked, which
// has to live as long as the guard.
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
		again = g.start() == nil && g.watch()
	}
	syscall.Exit(0) // os.Exit sleeps for a second under the race detector
}

// guardProcess is the process between pglead and the command. It is the parent of all
// that the command leaves behind. It holds the lock's socket open until all of that is
// dead, so the lock outlives pglead until then.
type guardProcess struct {
	fd       int       // this end of the socket pair
	control  io.Writer // writes to fd
	renewals int       // the pipe with new deadlines
	socket   int       // a duplicate of the lock's socket, or -1

	// What watch waits for, once listen has started:
	messages chan message
	children chan os.Signal
	timer    boottime.Timer  // for commandTree.deadline, and then for commandTree.killAt
	timeUp   <-chan struct{} // the timer has fired
	hungUp   <-chan struct{} // the server has closed the socket

	// The control group of its commands. A command that ends leaves it empty, or else the
	// guard ends, too. To make and remove it for each would take as long as a quarter of a fork.
	cgroup    string   // or empty
	cgroupDir *os.File // or nil

	resetStop func() // gives SIGTSTP the action that the command should inherit
	apart     bool   // it has left pglead's session
	orphaned  bool   // pglead is gone

	commandTree
}

// commandTree is what a guard knows of one command and all that it started. It is made anew for each
// command, so nothing of the previous one is left.
type commandTree struct {
	req    startRequest
	report doneReport

	// The command:
	pid       int
	pidfd     int // or -1
	stage     stage
	leftovers <-chan time.Time // fires at the end of the stage

	// The tree:
	phase    phase
	deadline boottime.Instant // the last one that was read
	killAt   boottime.Instant // the end of the phase terminating

	// Its kill, round by round (killRound):
	killedAt           time.Time // when the phase began
	retry              <-chan time.Time
	rounds             int
	unkillableReported bool
}

type message struct {
	kind kind
	body []byte
}

// newGuardProcess makes this process a guard. cgroup is the control group that it makes
// for its commands if it may, or empty. That is done before there is a request.
func newGuardProcess(control, renewals, socket int, cgroup string) (*guardProcess, error) {
	unix.CloseOnExec(control)
	unix.CloseOnExec(renewals)
	if socket >= 0 {
		unix.CloseOnExec(socket)
	}
	if err := becomeSubreaper(); err != nil {
		return nil, fmt.Errorf("become subreaper: %w", err)
	}
	// A signal may go to the whole group, session or control group: pglead acts on it.
	// The command gets the action that pglead was started with.
	discardSignals()
	g := &guardProcess{
		fd:       control,
		control:  blocking{control},
		renewals: renewals,
		socket:   socket,

		resetStop:   ignoreStop(),
		messages:    make(chan message),
		children:    make(chan os.Signal, 1),
		commandTree: newCommandTree(),
	}
	if g.cgroupDir = makeCgroup(cgroup); g.cgroupDir != nil {
		g.cgroup = cgroup
	}
	var err error
	if g.timer, err = boottime.NewTimer(); err != nil {
		return nil, err
	}
	return g, nil
}

func newCommandTree() commandTree { return commandTree{pidfd: -1, report: doneReport{Ending: Exited}} }

// watch returns when the command and all that it started are dead and reaped. It says
// whether the guard can have another command: it can't if it had to listen, or if a signal
// ended the command.
func (g *guardProcess) watch() (again bool) {
	brief := g.firstInstants()
	if !g.reap() {
		brief = false
		g.listen()
	}
	for !g.reap() { // also for a child that died before listen, so that no signal came
		if g.phase == killing {
			g.killRound()
		}
		select {
		case m, open := <-g.messages:
			if !open {
				g.messages, g.orphaned = nil, true
				g.kill(PgleadGone)
				continue
			}
			g.obey(m)
		case <-g.timeUp:
			g.checkTime()
		case <-g.hungUp:
			g.hungUp = nil
			g.terminate(SocketClosed)
		case <-g.leftovers:
			g.endStage()
		case <-g.retry:
		case <-g.children:
		}
	}
	g.leaveSocket()
	g.report.Ready = flag(brief && g.req.KeepGuard && unix.WaitStatus(g.report.Status).Exited()) // see reuse.go
	err := writeMessage(blocking{g.fd}, msgDone, g.report.encode())
	if g.report.Ready == 0 || err != nil {
		removeCgroup(g.cgroup)
	}
	g.linger()
	if errors.Is(err, unix.EAGAIN) { // pglead is stopped, and its socket full
		err = writeMessage(g.control, msgDone, g.report.encode())
	}
	return err == nil && g.report.Ready != 0
}

// listen starts the goroutines that deliver what watch waits for.
func (g *guardProcess) listen() {
	signal.Notify(g.children, unix.SIGCHLD)
	signal.Notify(make(chan os.Signal, 1), unix.SIGTSTP)
	g.timeUp = firings(g.timer)
	g.hungUp = hangup(g.socket)
	_ = unix.SetNonblock(g.fd, true)
	control := os.NewFile(uintptr(g.fd), "control")
	g.control = control
	go func() {
		defer close(g.messages)
		for {
			k, body, err := readMessage(control)
			if err != nil {
				return
			}
			g.messages <- message{k, body}
		}
	}()
}

// firings delivers each firing of a timer.
func firings(t boottime.Timer) <-chan struct{} {
	fired := make(chan struct{}, 1)
	go func() {
		for t.Wait() == nil {
			select {
			case fired <- struct{}{}:
			default:
			}
		}
	}()
	return fired
}

func (g *guardProcess) obey(m message) {
	switch m.kind {
	case msgSignal:
		g.signal(unix.Signal(number(m.body)))
	case msgKill:
		g.kill(Killed)
	case msgLost:
		g.terminate(Killed)
	}
}

// readRenewals empties the pipe of renewals. The last renewal becomes the deadline.
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
// passed. Go's write deadlines would not do: on a busy machine a deadline may pass before
// the write begins.
func (g *guardProcess) tell(k kind, body []byte) {
	_ = writeMessage(blocking{g.fd}, k, body) // listen has made the descriptor non-blocking
}
