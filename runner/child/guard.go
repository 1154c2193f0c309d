package child

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// Guard is a guard process as pglead sees it: its number, the socket pair for orders and answers,
// and the pipe for new deadlines. It has no command yet, or one (a Child), or several, one after
// the other (Spec.KeepGuard). It is started ahead of time, so that the command need not wait for
// it once the lock is granted.
type Guard struct {
	parent  *Parent
	pid     int
	control *os.File // this end of the socket pair
	cgroup  string   // the control group that the guard makes for its commands if it may, or empty
	idle    bool     // see Idle; while a command runs, Child.end may set it
	used    bool     // it was asked to start a command

	mu       sync.Mutex   // guards all that follows
	renewals int          // this end of the pipe, or -1
	unsent   []guardOrder // orders for which the socket had no room
	sending  bool         // sendRest runs
	gone     bool         // the guard is reaped: another process may have its pid
}

// guardOrder tells the guard what to do.
type guardOrder struct {
	kind kind
	n    int64
}

// spawn executes this program as the guard. Besides the standard descriptors the guard gets
// three, at free numbers, so that descriptors that the user passes on (3<file) reach the command.
func (g *Guard) spawn(socket syscall.Conn) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	unix.CloseOnExec(pair[0])
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return err
	}
	g.control = os.NewFile(uintptr(pair[0]), "guard")
	var renewals [2]int
	if err := unix.Pipe(renewals[:]); err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	defer unix.Close(renewals[0])
	unix.CloseOnExec(renewals[1])
	g.renewals = renewals[1]
	for _, end := range renewals {
		if err := unix.SetNonblock(end, true); err != nil {
			return err
		}
	}
	socketCopy, err := duplicate(socket)
	if err != nil {
		return err
	}
	if socketCopy >= 0 {
		defer unix.Close(socketCopy)
	}
	// ps shows the arguments to everybody, and pkill -f matches them. So they contain neither the
	// key nor the word pglead. The name of the control group, which has that word, is in the
	// environment.
	args := []string{
		guardName, "of process " + strconv.Itoa(os.Getpid()),
		strconv.Itoa(pair[1]), strconv.Itoa(renewals[0]), strconv.Itoa(socketCopy),
	}
	slack, restore := loosenTimers()
	defer restore()
	attributes := &syscall.ProcAttr{
		// The guard's Go runtime needs no second processor, and no memory profile: the
		// first sample alone costs 30 page faults at the start. The command's environment
		// is in the start request.
		Env:   []string{"GOMAXPROCS=1", "GODEBUG=memprofilerate=0", cgroupVariable + "=" + g.cgroup, slackVariable + "=" + slack},
		Files: []uintptr{g.parent.stdin(), 1, 2},
		Sys:   guardAttributes(),
	}
	for _, program := range g.parent.programs() {
		if g.pid, err = syscall.ForkExec(program, args, attributes); err == nil {
			break
		}
	}
	return err
}

// Close ends a guard that has no command. It hangs up, and also kills, since a stopped
// guard doesn't notice a hang-up.
func (g *Guard) Close() {
	g.idle = false
	g.hangUp()
	g.sigkill()
	g.reap()
	removeCgroup(g.cgroup)
}

// send gives the guard an order. It never blocks: the guard may be stopped, and this
// process has to go on, to notice that the lock is lost. If the socket has no room, the
// order is sent later and, like a pending signal, only once. If writing fails for another
// reason, the guard is dead or done, and Child.listen will soon find out.
func (g *Guard) send(o guardOrder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.sending:
		if errors.Is(g.trySend(o), unix.EAGAIN) {
			g.unsent, g.sending = append(g.unsent, o), true
			go g.sendRest()
		}
	case !slices.Contains(g.unsent, o):
		g.unsent = append(g.unsent, o)
	}
}

// trySend sends an order if there is room for it. An order is so short that it is written
// as a whole or not at all.
func (g *Guard) trySend(o guardOrder) error {
	raw, err := g.control.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) { err = writeNumber(blocking{int(fd)}, o.kind, o.n) })
	return cmp.Or(controlErr, err)
}

// sendRest waits until the guard reads. If the guard is dead, hangUp ends the wait.
func (g *Guard) sendRest() {
	for {
		g.mu.Lock()
		if len(g.unsent) == 0 {
			g.sending = false
			g.mu.Unlock()
			return
		}
		o := g.unsent[0]
		g.unsent = g.unsent[1:]
		g.mu.Unlock()
		_ = writeNumber(g.control, o.kind, o.n)
	}
}

// signal signals the guard itself, unless it is reaped: then another process may have its number.
func (g *Guard) signal(sig unix.Signal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		_ = unix.Kill(g.pid, sig)
	}
}

// wake wakes a guard that was stopped, for instance by its own command: it would see neither a
// request nor the command's end.
func (g *Guard) wake() { g.signal(unix.SIGCONT) }

// renew puts a new deadline into the pipe, and says whether it did. It also wakes the guard.
func (g *Guard) renew(deadline boottime.Instant) bool {
	g.wake()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.renewals < 0 {
		return false
	}
	_, err := unix.Write(g.renewals, binary.NativeEndian.AppendUint64(nil, uint64(deadline)))
	return err == nil
}

// hangUp closes this side's ends of the socket pair and of the pipe, if that exists yet.
func (g *Guard) hangUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.control.Close()
	if g.renewals >= 0 {
		_ = unix.Close(g.renewals)
		g.renewals = -1
	}
}

// sigkill kills the guard itself. Then the kernel kills the command, and killInPlaceOf does the
// rest.
func (g *Guard) sigkill() { g.signal(unix.SIGKILL) }

// reap waits for the guard's end.
func (g *Guard) reap() {
	for pause := 100 * time.Microsecond; !g.tryReap(); pause = min(2*pause, retryMost) {
		time.Sleep(pause)
	}
}

// tryReap reaps the guard if it is dead, and says whether it is reaped. It holds both mutexes,
// since its process number becomes free: signal must not hit the next process that has it, and the
// list of guards must not lose that, if it is a guard, too.
func (g *Guard) tryReap() bool {
	g.parent.mu.Lock()
	defer g.parent.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		pid, err := unix.Wait4(g.pid, nil, unix.WNOHANG, nil)
		g.gone = pid == g.pid || err != nil && !errors.Is(err, unix.EINTR)
		if g.gone {
			g.parent.guards = slices.DeleteFunc(g.parent.guards, func(pid int) bool { return pid == g.pid })
		}
	}
	return g.gone
}
