// Package child supervises the command: it starts it below a guard, passes
// signals on, and kills it together with everything that it started.
//
// There are three processes: pglead, the guard, and the command. The guard is
// pglead's own program again. It outlives pglead, if it must, by as long as it
// takes to kill and reap the tree, and it enforces the deadline that pglead
// keeps renewing, so it makes no difference how pglead comes to an end or to a
// halt. Should the guard be killed, the command dies with it
// (PR_SET_PDEATHSIG) and what is left of the tree falls to pglead.
package child

import (
	"context"
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

// Config is what to run and until when.
type Config struct {
	Path string // from Lookup
	Args []string
	Env  []string

	// Deadline is the instant of the boot time clock at which the tree is
	// killed unless Renew has moved it.
	Deadline time.Duration

	// LostGrace is what the command gets between SIGTERM and SIGKILL when
	// the lock is lost. It ends at the latest LeaseGrace after the deadline.
	LostGrace, LeaseGrace time.Duration

	// GuardPatience is how long after the order to end the tree, since the lock
	// is lost, the guard may take to do it. Then it is killed and with it the
	// command, and this process does the rest. 0 is as long as for other orders.
	GuardPatience time.Duration

	// WaitForLeftovers lets processes that outlive the command go on, and
	// the child with them, instead of ending them.
	WaitForLeftovers bool

	// LastWords are what the guard writes to the socket when the tree is dead, if
	// this process is gone by then. With Goodbye they end the connection.
	LastWords []byte
	Goodbye   bool
}

// Child is a running command and all the processes below it.
type Child struct {
	control  *os.File
	guard    int
	renewals int   // where new deadlines go to, or -1; under writeMu
	renewed  int64 // the last one that went there
	pid      int
	cgroup   string // that the guard makes for the command if it may, or empty
	guards   *Guards
	events   chan Event
	done     chan struct{}
	writeMu  sync.Mutex
	unsaid   []order // what the guard's socket has no room for yet; under writeMu
	saying   bool    // and is waited for
	result   Result

	cfg       Config
	guardMu   sync.Mutex
	guardGone bool // its number may be another's
	excused   bool // the guard has said why it takes its time
}

// Result is how a child ended.
type Result struct {
	Ending Ending
	Status unix.WaitStatus // the command's
	Killed int             // processes that had to be killed
	// GuardDied says that the guard was killed, so the tree was too, and
	// that the command's own status is unknown.
	GuardDied bool
}

// Event is something to know about a child that goes on.
type Event struct {
	// Stopped is the signal that stopped the command, or 0.
	Stopped unix.Signal
	// Leftovers names processes that outlive the command.
	Leftovers string
	// Unkillable names processes that SIGKILL doesn't reach: those of another
	// user, or in an uninterruptible wait.
	Unkillable string
}

// NoProcError says that the guard could not find the processes that it has to
// kill: /proc is not mounted, or it is another PID namespace's.
type NoProcError struct{ seen string }

func (e *NoProcError) Error() string { return "start the guard process: " + e.seen }

// ErrTooLate says that the deadline had passed before the command could start.
var ErrTooLate = errors.New("the lease ran out before the command could start")

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

// Guard is a guard process that has no command yet. To start one ahead of time
// saves a program's start between the grant of the lock and the command.
type Guard struct{ child *Child }

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

// forget is for a guard that is dead and reaped.
func (gs *Guards) forget(pid int) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.pids = slices.DeleteFunc(gs.pids, func(p int) bool { return p == pid })
}

// kin are the children that no dead guard has left behind. The caller has mu.
func (gs *Guards) kin() []int { return slices.Concat(gs.before, gs.pids) }

// Close ends a guard that has no command. That it hears the end of what is said to
// it would do, if it weren't stopped.
func (g *Guard) Close() {
	c := g.child
	c.hangUp()
	c.killGuard()
	c.reapGuard()
	removeCgroup(c.cgroup)
}

// reapGuard waits for the guard's end. It looks again and again, with the lock
// held for the look, so that killGuard can't hit a number that has just become
// free.
func (c *Child) reapGuard() {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, retryMost) {
		c.guardMu.Lock()
		pid, err := unix.Wait4(c.guard, nil, unix.WNOHANG, nil)
		c.guardGone = pid == c.guard || err != nil && !errors.Is(err, unix.EINTR)
		gone := c.guardGone
		c.guardMu.Unlock()
		if gone {
			c.guards.forget(c.guard)
			return
		}
		time.Sleep(pause)
	}
}

// startPatience is how long an interrupted Start waits for the guard's word.
const startPatience = time.Second

// Start has the guard start the command, and returns when it runs. The error
// is a *LookupError if the command itself could not be executed, and ctx's if
// that ended and the guard did not answer. In any case the guard is used up.
//
// A guard that is stopped, or hangs, keeps the lock for nobody: Start ends by the
// deadline, and soon after ctx.
func (g *Guard) Start(ctx context.Context, cfg Config) (*Child, error) {
	c := g.child
	if boottime.Now() >= cfg.Deadline {
		g.Close()
		return nil, ErrTooLate
	}
	c.cfg = cfg
	req := startRequest{
		path: cfg.Path, args: cfg.Args, env: cfg.Env,
		deadline: int64(cfg.Deadline), lostGrace: int64(cfg.LostGrace), leaseGrace: int64(cfg.LeaseGrace),
	}
	if cfg.WaitForLeftovers {
		req.waitForAll = 1
	}
	if req.lastWords = string(cfg.LastWords); cfg.Goodbye {
		req.goodbye = 1
	}
	_ = c.control.SetDeadline(time.Now().Add(cfg.Deadline - boottime.Now()))
	hurried := make(chan struct{})
	calm := context.AfterFunc(ctx, func() {
		defer close(hurried)
		_ = c.control.SetDeadline(time.Now().Add(min(startPatience, cfg.Deadline-boottime.Now())))
	})
	err := writeMessage(c.control, msgStart, req.encode())
	if err == nil {
		err = c.awaitStart(cfg.Args[0])
	}
	if !calm() {
		<-hurried
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// Was it this process that was stopped? Then the guard's word is there.
		_ = c.control.SetDeadline(time.Now().Add(10 * time.Millisecond))
		err = c.awaitStart(cfg.Args[0])
	}
	_ = c.control.SetDeadline(time.Time{})
	var lookup *LookupError
	switch {
	case errors.As(err, &lookup), errors.Is(err, ErrTooLate):
		g.Close()
		return nil, err
	case err != nil:
		// The guard may have died, or been stopped, with the command started.
		c.killGuard()
		c.takeOver()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = errGuardSilent
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
		}
		return nil, err
	}
	go c.listen()
	return c, nil
}

// errGuardSilent says that the guard was stopped, or had no time to run.
var errGuardSilent = errors.New("the guard process did not start the command in time")

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

func (c *Child) awaitStart(name string) error {
	k, body, err := readMessage(c.control)
	switch {
	case err != nil:
		return fmt.Errorf("the guard process ended before the command could start: %w", err)
	case k == msgFailed:
		if number(body) == tooLate {
			return ErrTooLate
		}
		errno := syscall.Errno(number(body))
		return &LookupError{Name: name, NotFound: errno == syscall.ENOENT, err: errno}
	case k != msgStarted:
		return errors.New("the guard process answers nonsense")
	}
	c.pid = int(number(body))
	return nil
}

// listen turns what the guard says into events, and its end into Done.
func (c *Child) listen() {
	for {
		k, body, err := readMessage(c.control)
		if err != nil {
			c.takeOver()
			close(c.done)
			return
		}
		switch k {
		case msgStopped:
			c.tell(Event{Stopped: unix.Signal(number(body))})
		case msgLeftovers:
			c.tell(Event{Leftovers: string(body)})
		case msgUnkillable:
			c.guardMu.Lock()
			c.excused = true
			c.guardMu.Unlock()
			c.tell(Event{Unkillable: string(body)})
		case msgDone:
			var report doneReport
			if report.decode(body) != nil {
				continue
			}
			c.result = Result{Ending: report.ending, Status: unix.WaitStatus(report.status), Killed: int(report.killed)}
			close(c.done) // whoever waits for the lock need not wait for the guard
			c.hangUp()
			c.reapGuard()
			return
		}
	}
}

// tell never blocks: the end of the tree must not wait for a reader.
func (c *Child) tell(e Event) {
	select {
	case c.events <- e:
	default:
	}
}

// takeOver does the guard's work after its death: the command has got its
// SIGKILL from the kernel, and this process has inherited the rest.
func (c *Child) takeOver() {
	c.hangUp()
	c.reapGuard()
	c.result = Result{Ending: Killed, GuardDied: true}
	killCgroup(c.cgroup)
	defer removeCgroup(c.cgroup)
	began, told := time.Now(), false
	for round, pause := 0, retryFirst; ; round, pause = round+1, min(2*pause, retryMost) {
		left := c.guards.killOrphans(round%stubbornRounds == stubbornRounds-1)
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			if reaped, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); reaped == pid {
				c.result.Killed++
			}
		}
		if !told && time.Since(began) > unkillableAfter {
			told = true
			c.guards.mu.Lock()
			c.tell(Event{Unkillable: describe(remains(c.guards.kin()))})
			c.guards.mu.Unlock()
		}
		time.Sleep(pause)
	}
}

// killOrphans sends SIGKILL to what dead guards have left behind, and says what
// that was.
func (gs *Guards) killOrphans(stubborn bool) []int {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	kin := gs.kin()
	if stubborn {
		stopDescendants(kin)
	}
	left := killChildren(kin)
	if len(left) == 0 && len(kin) > 0 {
		// Where there are no other children the kernel has said so. Else this was
		// read from a list that may leave one out while another is reaped (proc(5)).
		left = killChildren(kin)
	}
	return left
}

// PID is the command's process number.
func (c *Child) PID() int { return c.pid }

// Events delivers what happens before the end.
func (c *Child) Events() <-chan Event { return c.events }

// Done is closed when the command and every process that it started are dead
// and reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// Result says how it ended. It may be called after Done.
func (c *Child) Result() Result { return c.result }

// Renew moves the deadline.
func (c *Child) Renew(deadline time.Duration) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.renewals < 0 || int64(deadline)-c.renewed < int64(renewalStep) {
		return
	}
	if _, err := unix.Write(c.renewals, binary.NativeEndian.AppendUint64(nil, uint64(deadline))); err == nil {
		c.renewed = int64(deadline)
	}
}

// renewalStep is the least by which a deadline has to move to be worth telling.
// Every answer of the server moves it, thousands in a second if a session works
// on many items, and the pipe, which the guard reads once in a deadline, must not
// fill up: it has room for 8,192, or for 512 where the user has many pipes (pipe(7)).
const renewalStep = 250 * time.Millisecond

// hangUp ends what is said to the guard.
func (c *Child) hangUp() {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	_ = c.control.Close() // nil, if there is no guard yet, is no harm
	if c.renewals >= 0 {
		_ = unix.Close(c.renewals)
		c.renewals = -1
	}
}
