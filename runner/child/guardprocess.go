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

// guardName is the guard's argv[0] and process name. It has no part of "pglead" in
// it, so that pkill pglead hits one of the two and the other can clean up.
const guardName = "lease-guard"

// cgroupVariable names the command's control group in the guard's environment.
const cgroupVariable = "CGROUP"

// init is the guard's main function. Go initialises packages in the order of
// their paths as far as their imports allow, so neither net nor regexp nor most
// of what pglead alone needs has been set up yet, or will be. That saves a fifth of
// the guard's memory, and of its start, for which the command waits. So this package
// must not import them (TestGuardStartsEarly).
//
// An init runs on the process's first thread (runtime.LockOSThread), and that
// is the one that starts the command: PR_SET_PDEATHSIG means the death of the
// *thread* that forked, which has to be there for as long as the guard.
//
// Any program of which this package is a part can be the guard, tests too.
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
	setThreadName(guardName) // which is the process's, too
	g, err := newGuardProcess(control, renewals, socket, os.Getenv(cgroupVariable))
	for again := err == nil; again; {
		again = g.start() == nil && g.watch()
	}
	syscall.Exit(0) // os.Exit sleeps for a second under the race detector
}

// guardProcess is the process between pglead and the command. It is the parent of
// all that the command leaves behind, and holds the lock's socket open until all of
// it is dead: so the lock, too, outlives pglead until then.
type guardProcess struct {
	fd       int       // this end of the socket pair
	control  io.Writer // writes to fd
	renewals int       // the pipe from which new deadlines are read
	socket   int       // a duplicate of the lock's, or -1

	// What watch waits for, from listen on:
	messages chan message
	children chan os.Signal
	timer    boottime.Timer  // for turn.deadline, and then for turn.killAt
	timeUp   <-chan struct{} // the timer has fired
	hungUp   <-chan struct{} // the server has closed the socket

	resetStop func() // gives SIGTSTP back the action that it is to have in the command
	apart     bool   // from pglead's session
	orphaned  bool   // pglead is gone

	turn
}

// turn is what a guard knows of one command and its tree. Each command begins with a
// new one, and so gets nothing from the command before.
type turn struct {
	req    startRequest
	report doneReport

	// The command:
	pid       int
	pidfd     int    // or -1
	cgroup    string // or empty
	cgroupDir *os.File
	stage     stage
	leftovers <-chan time.Time // the end of a stage

	// The tree:
	phase    phase
	deadline boottime.Instant // the latest that pglead has sent
	killAt   boottime.Instant // the end of the phase terminating

	// Its kill, in rounds:
	killedAt           time.Time // when the phase began
	retry              <-chan time.Time
	rounds             int
	unkillableReported bool
}

type message struct {
	kind kind
	body []byte
}

// newGuardProcess makes this process a guard. Cgroup names the control group of its
// first command, or is empty.
func newGuardProcess(control, renewals, socket int, cgroup string) (*guardProcess, error) {
	unix.CloseOnExec(control)
	unix.CloseOnExec(renewals)
	if socket >= 0 {
		unix.CloseOnExec(socket)
	}
	if err := becomeSubreaper(); err != nil {
		return nil, fmt.Errorf("become subreaper: %w", err)
	}
	// pglead acts on signals that are sent to the whole group, session or control
	// group. In the command their actions are those that pglead was started with.
	discardSignals()
	g := &guardProcess{
		fd:       control,
		control:  blocking{control},
		renewals: renewals,
		socket:   socket,

		resetStop: ignoreStop(),
		messages:  make(chan message),
		children:  make(chan os.Signal, 1),
		turn:      newTurn(cgroup),
	}
	var err error
	if g.timer, err = boottime.NewTimer(); err != nil {
		return nil, err
	}
	return g, nil
}

// newTurn begins a turn, and makes the control group for its command if it may.
func newTurn(cgroup string) turn {
	t := turn{pidfd: -1, report: doneReport{Ending: Exited}}
	if t.cgroupDir = makeCgroup(cgroup); t.cgroupDir != nil {
		t.cgroup = t.cgroupDir.Name()
	}
	return t
}

// watch returns when the command and all that it started are dead and reaped, and
// says whether the guard can have another command. For that it has to be as it was
// before: it can't be once it had to listen, or if a signal ended the command.
func (g *guardProcess) watch() (again bool) {
	brief := g.firstInstants()
	if !g.reap() {
		brief = false
		g.listen()
	}
	for !g.reap() { // once more: no signal has told of a child that died before listen
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
	if brief && g.req.KeepGuard && unix.WaitStatus(g.report.Status).Exited() {
		g.report.Ready = 1
	}
	err := writeMessage(blocking{g.fd}, msgDone, g.report.encode())
	removeCgroup(g.cgroup)
	g.linger()
	if errors.Is(err, unix.EAGAIN) { // pglead is stopped, and its socket full
		err = writeMessage(g.control, msgDone, g.report.encode())
	}
	return err == nil && g.report.Ready != 0
}

// listen starts the delivery of all that watch waits for.
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

// readRenewals empties the pipe of renewals. The last of them is the deadline now.
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

// tell says what pglead can do without. If pglead is stopped and its socket full, the
// message is dropped: the guard has to go on, to notice that the deadline has passed. A
// deadline of Go's would not do, which may have passed on a busy machine before the write.
func (g *guardProcess) tell(k kind, body []byte) {
	_ = writeMessage(blocking{g.fd}, k, body) // since listen it doesn't block
}
