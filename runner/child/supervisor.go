package child

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Supervisor starts guards, and inherits the processes that a guard leaves behind
// when it is killed: they become this process's children.
type Supervisor struct {
	// Stdin is the commands' standard input; nil stands for this process's own.
	Stdin *os.File

	cgroup func() string // this process's
	again  func() bool   // guards may have several commands

	mu     sync.Mutex // held while a guard starts, and while orphans are told from ownChildren
	before []int      // the children that were there before the first guard
	guards []int
}

// NoProcError says that the guard could not find the processes that it has to
// kill: /proc is not mounted, or it is another PID namespace's.
type NoProcError struct{ seen string }

func (e *NoProcError) Error() string { return "start the guard process: " + e.seen }

// NewSupervisor makes this process the one that inherits what a guard leaves behind.
func NewSupervisor() (*Supervisor, error) {
	if err := checkProc(); err != nil {
		return nil, err
	}
	if err := becomeSubreaper(); err != nil {
		return nil, fmt.Errorf("become subreaper: %w", err)
	}
	s := &Supervisor{before: children(), cgroup: sync.OnceValue(ownCgroup), again: sync.OnceValue(noTerminal)}
	go s.cgroup() // while the connection is made
	return s, nil
}

// New starts a guard process.
//
// Socket is the connection that the lock depends on. The guard holds it open until
// the tree is dead, even if this process is gone. It may be nil.
func (s *Supervisor) New(socket syscall.Conn) (*Guard, error) {
	c := &Child{
		supervisor: s,
		renewals:   -1,
		events:     make(chan Event, 16),
		done:       make(chan struct{}),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := c.startGuard(socket); err != nil {
		c.hangUp()
		return nil, fmt.Errorf("start the guard process: %w", err)
	}
	s.guards = append(s.guards, c.guard)
	return &Guard{c}, nil
}

// ownChildren are the children that no dead guard has left behind. The caller
// holds mu.
func (s *Supervisor) ownChildren() []int { return slices.Concat(s.before, s.guards) }

// forget takes a guard that is dead and reaped off the list.
func (s *Supervisor) forget(guard int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guards = slices.DeleteFunc(s.guards, func(pid int) bool { return pid == guard })
}

// startGuard executes this program as the guard. Besides the standard descriptors
// the guard gets three, at whatever numbers are free, so that those that the user
// passes on (3<file) reach the command.
func (c *Child) startGuard(socket syscall.Conn) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	unix.CloseOnExec(pair[0])
	defer unix.Close(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		return err
	}
	c.control = os.NewFile(uintptr(pair[0]), "guard")
	var renewals [2]int
	if err := unix.Pipe(renewals[:]); err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	defer unix.Close(renewals[0])
	unix.CloseOnExec(renewals[1])
	c.renewals = renewals[1]
	for _, end := range renewals {
		if err := unix.SetNonblock(end, true); err != nil {
			return err
		}
	}
	lock, err := duplicate(socket)
	if err != nil {
		return err
	}
	if lock >= 0 {
		defer unix.Close(lock)
	}
	c.cgroup = newCgroup(c.supervisor.cgroup())
	stdin := uintptr(0)
	if c.supervisor.Stdin != nil {
		stdin = c.supervisor.Stdin.Fd()
	}
	// ps shows the arguments to everybody, and pkill -f matches them. So they name
	// neither the key, nor pglead, nor the control group, which is in the environment.
	args := []string{guardName, "of process " + strconv.Itoa(os.Getpid()), strconv.Itoa(pair[1]), strconv.Itoa(renewals[0]), strconv.Itoa(lock)}
	c.guard, err = syscall.ForkExec(selfExe(), args, &syscall.ProcAttr{
		// The guard's Go runtime needs no second processor, and no memory profile,
		// of which it would take one sample at the start, at 30 page faults. The
		// command's environment is in the start request.
		Env:   []string{"GOMAXPROCS=1", "GODEBUG=memprofilerate=0", cgroupVariable + "=" + c.cgroup},
		Files: []uintptr{stdin, 1, 2},
	})
	return err
}

// duplicate returns a descriptor of the socket that survives an exec, or -1.
// It goes by SyscallConn because a net.Conn's own File would make the shared
// socket blocking, after which deadlines have no effect.
func duplicate(socket syscall.Conn) (int, error) {
	if socket == nil {
		return -1, nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(s uintptr) { fd, dupErr = unix.FcntlInt(s, unix.F_DUPFD, 3) }); err != nil {
		return -1, err
	}
	return fd, dupErr
}
