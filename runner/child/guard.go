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

// guardName is the guard's argv[0] and process name. It shares no part with
// "pglead", so that pkill pglead hits one of the two and the other can clean
// up.
const guardName = "lease-guard"

// cgroupVariable has the name of the command's control group, in the guard's
// environment.
const cgroupVariable = "CGROUP"

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

// init is the guard's main function. Go initialises packages in the order of
// their paths as far as their imports allow, so neither net nor regexp nor most
// of what pglead alone needs has been set up yet, or will be: that is a fifth of
// the guard's start, which the command waits for, and of its memory. So this
// package must not import any such (TestGuardStartsEarly).
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
	g, err := newGuard(control, renewals, socket, os.Getenv(cgroupVariable))
	if err == nil {
		err = g.start()
	}
	if err == nil {
		g.watch()
	}
	syscall.Exit(0) // os.Exit sleeps for a second under the race detector
}

// guard is the process between pglead and the command. It is the parent of
// all that the command leaves behind, and holds the lock's socket open until
// all of it is dead: so the lock, too, outlives pglead until then.
type guard struct {
	fd       int       // of the socket pair
	control  io.Writer // by way of it
	renewals int       // where new deadlines come from
	socket   int       // a duplicate of the lock's, or -1
	messages chan message
	children chan os.Signal
	deadline boottime.Timer
	over     <-chan struct{} // the deadline's timer has fired
	hungUp   <-chan struct{}
	req      startRequest

	pid       int    // of the command
	pidfd     int    // its pidfd, or -1
	resetStop func() // gives SIGTSTP back the action that it is to have in the command
	cgroup    string // the command's, or empty
	cgroupDir *os.File
	exited    bool
	report    doneReport

	orphaned        bool // pglead is gone
	losing, killing bool
	leftovers       <-chan time.Time // the next step against them
	terminated      bool             // leftovers have had SIGTERM
	retry           <-chan time.Time
	rounds          int
	killedAt        time.Time
	complained      bool
}

type message struct {
	kind kind
	body []byte
}

// newGuard makes this process a guard; cgroup is the group that it makes for the
// command, or empty.
func newGuard(control, renewals, socket int, cgroup string) (*guard, error) {
	unix.CloseOnExec(control)
	unix.CloseOnExec(renewals)
	if socket >= 0 {
		unix.CloseOnExec(socket)
	}
	if err := becomeSubreaper(); err != nil {
		return nil, fmt.Errorf("become subreaper: %w", err)
	}
	// Signals for the whole group, session or control group are pglead's to act
	// on. In the command they are to be what they were at the start.
	discardSignals()
	g := &guard{
		fd:       control,
		control:  blocking{control},
		renewals: renewals,
		socket:   socket,
		pidfd:    -1,

		resetStop: ignoreStop(),
		messages:  make(chan message),
		children:  make(chan os.Signal, 1),
		report:    doneReport{ending: Exited},
	}
	if g.cgroupDir = makeCgroup(cgroup); g.cgroupDir != nil {
		g.cgroup = g.cgroupDir.Name()
	}
	var err error
	if g.deadline, err = boottime.NewTimer(); err != nil {
		return nil, err
	}
	return g, nil
}

// blocking reads and writes a descriptor on the calling thread. Up to the command's
// start the guard has nothing else to do, and each goroutine that waits for
// another, or for Go's poller, takes one more thread: an init has one to itself.
type blocking struct{ fd int }

func (b blocking) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(b.fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (b blocking) Write(p []byte) (written int, err error) {
	for written < len(p) && (err == nil || err == unix.EINTR) {
		n := 0
		n, err = unix.Write(b.fd, p[written:])
		written += max(0, n)
	}
	return written, err
}

// firings delivers when a timer has fired.
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

// start receives the request and starts the command.
func (g *guard) start() error {
	k, body, err := readMessage(blocking{g.fd})
	if err != nil || k != msgStart {
		removeCgroup(g.cgroup)
		return fmt.Errorf("no start request: %w", err)
	}
	if err := g.req.decode(body); err != nil {
		return err
	}
	if err := g.deadline.Set(time.Duration(g.req.deadline)); err != nil {
		return err
	}
	// The command is started in pglead's process group, which is the guard's
	// too up to here: in one of its own it could neither read from the
	// terminal nor be stopped by Ctrl-Z.
	if int64(boottime.Now()) >= g.req.deadline {
		// pglead was stopped on its way here, or slow: the lock may be another's.
		removeCgroup(g.cgroup)
		_ = writeNumber(g.control, msgFailed, tooLate)
		return ErrTooLate
	}
	g.resetStop()
	g.pid, err = g.execute(&syscall.ProcAttr{Env: g.req.env, Files: []uintptr{0, 1, 2}, Sys: commandAttributes(&g.pidfd)})
	if err != nil {
		removeCgroup(g.cgroup)
		errno := syscall.EINVAL
		_ = errors.As(err, &errno)
		_ = writeNumber(g.control, msgFailed, int64(errno))
		return err
	}
	// From here on the guard has a session of its own, in which no signal for
	// the group reaches it. A group of its own would not do: as a parent in
	// another group of the same session it would keep pglead's group from
	// being orphaned (setpgid(2)), and when it is gone, and pglead is stopped,
	// the kernel would send that group, cron's shell and all, SIGHUP.
	if _, err := unix.Setsid(); err != nil {
		return fmt.Errorf("setsid: %w", err)
	}
	if err := writeNumber(g.control, msgStarted, int64(g.pid)); err != nil {
		g.end(PgleadGone)
	}
	return nil
}

// listen has what the guard waits for delivered.
func (g *guard) listen() {
	signal.Notify(g.children, unix.SIGCHLD)
	signal.Notify(make(chan os.Signal, 1), unix.SIGTSTP)
	g.over = firings(g.deadline)
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

// execute starts the command, in a control group of its own if that can be.
func (g *guard) execute(attr *syscall.ProcAttr) (pid int, err error) {
	if g.cgroupDir != nil {
		defer g.cgroupDir.Close()
		setCgroup(attr.Sys, g.cgroupDir)
		pid, err := syscall.ForkExec(g.req.path, g.req.args, attr)
		if err == nil {
			return pid, nil
		}
		// The kernel may refuse the group and not the command.
		attr.Sys = commandAttributes(&g.pidfd)
		removeCgroup(g.cgroup)
		g.cgroup = ""
	}
	pid, err = syscall.ForkExec(g.req.path, g.req.args, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		// A script without #! is the shell's, as for execvp(3).
		args := append([]string{"sh", g.req.path}, g.req.args[1:]...)
		pid, err = syscall.ForkExec("/bin/sh", args, attr)
	}
	return pid, err
}

// watch returns when the command and all that it started are dead and reaped.
func (g *guard) watch() {
	g.firstInstants()
	if !g.reap() {
		g.listen()
	}
	for !g.reap() { // once more: a child that died before listen has told nobody
		if g.killing {
			g.killRound()
		}
		select {
		case m, open := <-g.messages:
			if !open {
				g.messages, g.orphaned = nil, true
				g.end(PgleadGone)
				continue
			}
			g.obey(m)
		case <-g.over:
			g.renew()
			switch {
			case int64(boottime.Now()) < g.req.deadline:
				_ = g.deadline.Set(time.Duration(g.req.deadline))
			case g.losing:
				g.kill()
			default:
				g.lose(LeaseOver)
			}
		case <-g.hungUp:
			g.hungUp = nil
			g.lose(SocketClosed)
		case <-g.leftovers:
			g.endLeftovers()
		case <-g.retry:
		case <-g.children:
		}
	}
	switch {
	case g.socket < 0:
	case g.orphaned && g.report.ending != SocketClosed && g.req.lastWords != "":
		g.speak()
	case g.report.ending != Exited && g.report.ending != Killed:
		// pglead is dead, or stopped with a descriptor of its own that would
		// keep the connection, and the lock, alive for nothing.
		_ = unix.Shutdown(g.socket, unix.SHUT_RDWR)
	}
	_ = writeMessage(g.control, msgDone, g.report.encode())
	removeCgroup(g.cgroup)
}

func (g *guard) obey(m message) {
	switch m.kind {
	case msgSignal:
		g.signal(unix.Signal(number(m.body)))
	case msgKill:
		g.end(Killed)
	case msgLost:
		g.lose(Killed)
	}
}

// tell says something that pglead can do without: if pglead is stopped, and its
// socket full, the guard has to go on, to notice that the deadline has passed.
func (g *guard) tell(k kind, body []byte) {
	const most = 10 * time.Millisecond
	if file, ok := g.control.(*os.File); ok {
		_ = file.SetWriteDeadline(time.Now().Add(most))
		defer func() { _ = file.SetWriteDeadline(time.Time{}) }()
	}
	_ = writeMessage(g.control, k, body)
}

// renew takes note of the latest deadline, if the tree may live up to it.
func (g *guard) renew() {
	var deadlines [512]byte
	for !g.losing {
		n, err := unix.Read(g.renewals, deadlines[:])
		if err == unix.EINTR {
			continue
		}
		if n < 8 { // none, or no pglead any more
			return
		}
		g.req.deadline = int64(binary.NativeEndian.Uint64(deadlines[n-8 : n]))
	}
}

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
