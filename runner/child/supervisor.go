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

// Guards are the guard processes of this process. What a guard leaves behind
// when it is killed becomes this process's child, beside the guards themselves
// and what was there before them.
type Guards struct {
	Stdin *os.File // of the commands; nil is this process's own

	cgroup func() string // this process's

	mu     sync.Mutex // held while a guard starts, and while children are told apart
	before []int
	pids   []int
}

// NoProcError says that the guard could not find the processes that it has to
// kill: /proc is not mounted, or it is another PID namespace's.
type NoProcError struct{ seen string }

func (e *NoProcError) Error() string { return "start the guard process: " + e.seen }

// NewGuards makes this process one that inherits what a guard leaves behind.
func NewGuards() (*Guards, error) {
	if err := checkProc(); err != nil {
		return nil, err
	}
	if err := becomeSubreaper(); err != nil {
		return nil, fmt.Errorf("become subreaper: %w", err)
	}
	gs := &Guards{before: children(), cgroup: sync.OnceValue(ownCgroup)}
	go gs.cgroup() // while the connection is made
	return gs, nil
}

// New starts a guard process.
//
// Socket is the connection that the lock depends on. It stays open until the
// tree is dead, even if this process is gone. May be nil.
func (gs *Guards) New(socket syscall.Conn) (*Guard, error) {
	c := &Child{
		guards:   gs,
		renewals: -1,
		events:   make(chan Event, 16),
		done:     make(chan struct{}),
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if err := c.startGuard(socket); err != nil {
		c.hangUp()
		return nil, fmt.Errorf("start the guard process: %w", err)
	}
	gs.pids = append(gs.pids, c.guard)
	return &Guard{c}, nil
}

// kin are the children that no dead guard has left behind. The caller has mu.
func (gs *Guards) kin() []int { return slices.Concat(gs.before, gs.pids) }

// forget is for a guard that is dead and reaped.
func (gs *Guards) forget(pid int) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.pids = slices.DeleteFunc(gs.pids, func(p int) bool { return p == pid })
}

// startGuard runs this program again, as the guard. Of its own descriptors
// the guard gets three beyond the standard ones, at whatever numbers are free,
// so that those the user passes on (3<file) reach the command.
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
	// The guard's Go runtime needs no second processor, and no memory profile: of a
	// program that can't show one it takes one sample all the same, at the start,
	// which is 30 page faults. The user's environment travels beside the command. In
	// the arguments, the group's name could match what somebody gives to pkill -f; so
	// would pglead's name and the key, which are not there either, for whoever reads ps.
	c.cgroup = newCgroup(c.guards.cgroup())
	stdin := uintptr(0)
	if c.guards.Stdin != nil {
		stdin = c.guards.Stdin.Fd()
	}
	c.guard, err = syscall.ForkExec(selfExe(), []string{guardName, "of process " + strconv.Itoa(os.Getpid()), strconv.Itoa(pair[1]), strconv.Itoa(renewals[0]), strconv.Itoa(lock)}, &syscall.ProcAttr{
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
