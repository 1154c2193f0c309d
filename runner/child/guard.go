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

// Guard is a guard process as pglead sees it: its number, the socket pair for orders
// and answers, and the pipe for new deadlines. It has no command, or one (a Child), or
// several that follow each other (Config.KeepGuard). Started ahead of time it saves a
// program's start between the grant of the lock and the command.
type Guard struct {
	guards  *Guards
	pid     int
	control *os.File // this end of the socket pair
	cgroup  string   // the group that the guard makes for the command if it may, or empty
	used    bool     // it has had a command

	mu       sync.Mutex
	renewals int     // this end of the pipe, or -1
	unsent   []order // the socket has had no room for them yet
	sending  bool    // sendRest is at work
	gone     bool    // pid may be another process's
}

// order is something that the guard is told to do.
type order struct {
	kind kind
	n    int64
}

// execute executes this program as the guard. Besides the standard descriptors the
// guard gets three, at whatever numbers are free, so that those that the user passes
// on (3<file) reach the command.
func (g *Guard) execute(socket syscall.Conn) error {
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
	// ps shows the arguments to everybody, and pkill -f matches them. So they name
	// neither the key, nor pglead, nor the control group, which is in the environment.
	args := []string{guardName, "of process " + strconv.Itoa(os.Getpid()), strconv.Itoa(pair[1]), strconv.Itoa(renewals[0]), strconv.Itoa(socketCopy)}
	g.pid, err = syscall.ForkExec(selfExe(), args, &syscall.ProcAttr{
		// The guard's Go runtime needs no second processor, and no memory profile,
		// of which it would take one sample at the start, at 30 page faults. The
		// command's environment is in the start request.
		Env:   []string{"GOMAXPROCS=1", "GODEBUG=memprofilerate=0", cgroupVariable + "=" + g.cgroup},
		Files: []uintptr{g.guards.stdin(), 1, 2},
	})
	return err
}

// Close ends a guard that has no command. Hanging up ends any guard but one that is
// stopped; killing ends that one, too.
func (g *Guard) Close() {
	g.hangUp()
	g.kill()
	g.reap()
	removeCgroup(g.cgroup)
}

// Ended says of a guard that waits for a command whether it has ended. Until it has a
// command it says nothing, so all that there can be to read is the end.
func (g *Guard) Ended() (ended bool) {
	raw, err := g.control.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = err == nil && n > 0
	})
	return ended || err != nil
}

// send gives the guard an order. It never blocks: the guard may be stopped, and this
// process has to go on, to notice that the lock is lost. An order that the socket has
// no room for is sent later and, like a signal that is pending, only once. If
// writing fails for another reason, the guard is dead or done, and Child.listen is
// about to find out.
func (g *Guard) send(o order) {
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

// trySend sends an order if there is room for it. An order is too short to be
// written in part.
func (g *Guard) trySend(o order) error {
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

// renew puts a new deadline into the pipe, and says whether it could.
func (g *Guard) renew(deadline boottime.Instant) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.renewals < 0 {
		return false
	}
	_, err := unix.Write(g.renewals, binary.NativeEndian.AppendUint64(nil, uint64(deadline)))
	return err == nil
}

// hangUp closes this side's ends of the socket pair and the pipe, as far as there
// are any yet.
func (g *Guard) hangUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.control.Close()
	if g.renewals >= 0 {
		_ = unix.Close(g.renewals)
		g.renewals = -1
	}
}

// kill kills the guard itself. The kernel kills its command then, and the rest of
// its work falls to finishFor.
func (g *Guard) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.gone {
		_ = unix.Kill(g.pid, unix.SIGKILL)
	}
}

// reap waits for the guard's end. It polls, and holds mu only for the instant of each
// poll, so that kill can't hit a number that has just become free.
func (g *Guard) reap() {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, retryMost) {
		g.mu.Lock()
		pid, err := unix.Wait4(g.pid, nil, unix.WNOHANG, nil)
		g.gone = pid == g.pid || err != nil && !errors.Is(err, unix.EINTR)
		gone := g.gone
		g.mu.Unlock()
		if gone {
			g.guards.forget(g.pid)
			return
		}
		time.Sleep(pause)
	}
}
