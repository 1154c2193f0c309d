package child

import (
	"cmp"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Parent is this process as the parent of its guards, which it starts. When a guard is killed, the
// processes below it become this process's children, and Parent ends them.
type Parent struct {
	input      *os.File                          // the commands' standard input, or nil
	cgroup     func() string                     // this process's control group
	noTerminal func() bool                       // of this process: with one, KeepGuard has no effect
	threads    func() (reserved <-chan struct{}) // reserveThreads, once
	programs   func() []string                   // guardPrograms, once

	// mu is held from a guard's start until it is on the list, and during a search for orphans:
	// otherwise a new guard would look like an orphan.
	mu     sync.Mutex
	before []int // children that are older than the first guard
	guards []int // those that are not reaped
	kills  int   // how many killInPlaceOf are under way: these reap, and count what they kill
}

// NoProcError says that the guard could not find the processes that it has to
// kill: /proc is not mounted, or belongs to another PID namespace.
type NoProcError struct{ seen string }

func (e *NoProcError) Error() string { return "start the guard process: " + e.seen }

// NewParent makes this process the parent of whatever a guard leaves behind. stdin is the commands'
// standard input; nil means this process's own.
func NewParent(stdin *os.File) (*Parent, error) {
	if err := checkProc(); err != nil {
		return nil, err
	}
	if err := becomeSubreaper(); err != nil {
		return nil, fmt.Errorf("become subreaper: %w", err)
	}
	before, err := children(nil)
	if err != nil {
		return nil, fmt.Errorf("list this process's children: %w", err)
	}
	p := &Parent{
		input:      stdin,
		before:     before,
		cgroup:     sync.OnceValue(ownCgroup),
		noTerminal: sync.OnceValue(noTerminal),
		threads:    sync.OnceValue(reserveThreads),
		programs:   sync.OnceValue(guardPrograms),
	}
	go p.cgroup() // in parallel with the connection
	go p.programs()
	return p, nil
}

// StartGuard starts a guard process.
//
// socket is the connection that the lock depends on, or nil. The guard holds it open until
// the tree is dead, even if this process is gone.
func (p *Parent) StartGuard(socket syscall.Conn) (*Guard, error) {
	g := &Guard{parent: p, cgroup: newCgroup(p.cgroup()), renewals: -1, idle: true}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := g.spawn(socket); err != nil {
		g.hangUp()
		return nil, fmt.Errorf("start the guard process: %w", err)
	}
	p.guards = append(p.guards, g.pid)
	p.threads() // in parallel with the guard's start
	return g, nil
}

// stdin is the descriptor for the commands' standard input.
func (p *Parent) stdin() uintptr {
	if p.input == nil {
		return 0
	}
	return p.input.Fd()
}

// ownChildren are this process's children except for orphans of dead guards. The caller
// holds mu.
func (p *Parent) ownChildren() []int { return slices.Concat(p.before, p.guards) }

// ReapOrphans makes the first process of a container reap the container's orphans, which become its
// children. Guards are left to whoever started them, who may still signal them by number until they
// are reaped. Every other child is reaped here, also one that os/exec has started in this process:
// its Wait may then fail. In other processes ReapOrphans does nothing.
func (p *Parent) ReapOrphans() {
	if os.Getpid() != 1 {
		return
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, unix.SIGCHLD)
	go func() {
		for range died {
			p.reapOrphans()
		}
	}()
}

func (p *Parent) reapOrphans() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kills > 0 {
		return
	}
	pids, _ := children(p.guards)
	for _, pid := range pids {
		if reaped, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); reaped == pid {
			p.before = slices.DeleteFunc(p.before, func(old int) bool { return old == pid }) // its number may come again
		}
	}
}

// countKill counts a killInPlaceOf that begins, until the returned function is called.
func (p *Parent) countKill() (over func()) {
	add := func(n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.kills += n
	}
	add(1)
	return func() { add(-1) }
}

// duplicate returns a descriptor of the socket that survives an exec, or -1. It uses
// SyscallConn because a net.Conn's own File would make the shared socket blocking, so that
// deadlines would have no effect.
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

// killInPlaceOf does the rest of the work of a guard that was killed: the kernel has killed the
// command, and this process has inherited what was below it. It returns how many processes it
// reaped. It calls unkillable, unless that is nil, with the names of the processes that SIGKILL
// doesn't reach.
//
// A debugger can keep a killed guard from dying, and a dead one from being reaped. Then the tree is
// killed all the same, and the guard is waited for, and named, like the rest.
func (p *Parent) killInPlaceOf(g *Guard, unkillable func(names string)) (killed int64) {
	defer p.countKill()()
	g.hangUp()
	for pause := 100 * time.Microsecond; !g.tryReap() && pause < deathPatience; pause *= 2 {
		time.Sleep(pause)
	}
	killCgroup(g.cgroup)
	defer removeCgroup(g.cgroup)
	began, told := time.Now(), false
	for round, pause := 0, retryFirst; ; round, pause = round+1, min(2*pause, retryMost) {
		gone := g.tryReap()
		if !gone {
			all, _ := processes()
			signalAll(below(g.pid, all, nil), unix.SIGKILL)
		}
		left, unseen := p.killOrphans(round)
		if gone && len(left) == 0 && unseen == nil {
			return killed
		}
		for _, pid := range left {
			if reaped, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); reaped == pid {
				killed++
				began, pause = time.Now(), retryFirst // this works, and what was below it is a child now
			}
		}
		if !told && unkillable != nil && time.Since(began) > unkillableAfter {
			told = true
			names := p.nameOrphans(g)
			if unseen != nil {
				names = cmp.Or(names, "they can't be listed: "+unseen.Error())
			}
			unkillable(names)
		}
		time.Sleep(pause)
	}
}

// nameOrphans names what a guard has left behind and, unless it is reaped, the guard.
func (p *Parent) nameOrphans(g *Guard) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := slices.DeleteFunc(p.ownChildren(), func(pid int) bool { return pid == g.pid })
	return nameProcs(survivors(own), proc.keptAlive)
}

// killOrphans kills, in this round, what dead guards have left behind, and returns those children
// that are not reaped yet. An error says that there may be more: until all were seen to be dead,
// the lock has to stay held.
func (p *Parent) killOrphans(round int) (left []int, unseen error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.ownChildren()
	others := func() []int {
		pids, err := children(own)
		unseen = cmp.Or(unseen, err)
		return pids
	}
	left = killBelow(round, others, own)
	if len(left) == 0 {
		// The list may lack a child while another is reaped (proc(5)); the kernel is only
		// certain when there are no children at all. So this looks twice.
		left = killChildren(others)
	}
	return left, unseen
}
