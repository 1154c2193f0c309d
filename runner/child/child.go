// Package child runs the command below a guard process, passes signals on to it, and
// kills it together with everything that it started.
//
// There are three processes: pglead, the guard, and the command. The guard is pglead's own program,
// executed once more. It kills the tree (the command and all that it started) at the deadline,
// which pglead keeps renewing. If pglead ends first, the guard goes on until the tree is dead and
// reaped, so it makes no difference how pglead ends or is stopped. If the guard is killed, the
// kernel kills the command (PR_SET_PDEATHSIG), and pglead inherits the rest of the tree and kills
// it.
//
// On pglead's side there are Parent (this process), Guard (one of its guards) and Child (a command
// under a guard). On the other side is guardProcess. wire.go has the messages between the two.
//
// Read it in this order: parent.go (pglead starts a guard), start.go (and has it start the
// command), child.go (signals, new deadlines, the end), and then the guard's own side:
// guardprocess.go (the poll in which it waits while the tree lives, and what makes it kill), guardprocess_start.go,
// guardprocess_end.go (how it kills), guardprocess_release.go (the lock, if pglead is not there to
// release it), tree.go (its processes). The rest is there to be looked up.
package child

import (
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// Spec says what to start, and when and how the guard ends it.
type Spec struct {
	Path string // from Lookup
	Args []string
	Env  []string

	// Deadline is when the guard kills the tree, unless Renew has moved it.
	Deadline boottime.Instant

	// LostGrace is the time between SIGTERM and SIGKILL when the lock is lost. It ends MostGrace
	// after the deadline at the latest.
	LostGrace, MostGrace time.Duration

	// GuardPatience, needed for TellLost, is how long the guard may take to end the tree then.
	// After that this process kills the guard, and with it the command, and ends the rest
	// of the tree itself.
	GuardPatience time.Duration

	// WaitForLeftovers lets processes that outlive the command go on. The child ends
	// with the last of them.
	WaitForLeftovers bool

	// Release is what the guard writes to the socket when the tree is dead and this
	// process is gone. With ReleaseEndsSession, which takes a Release, it ends the
	// connection, and the guard also writes it after the deadline has passed.
	Release            []byte
	ReleaseEndsSession bool

	// SocketLinger is how long the guard leaves the connection open when the deadline has passed
	// and the tree is dead. After that the guard ends the connection, which a stopped pglead would
	// keep open.
	SocketLinger time.Duration

	// SharesSocket says that other commands' guards share the connection. Their trees may outlive
	// this one, so SocketLinger has to be as long as they may live.
	SharesSocket bool

	// KeepGuard keeps the guard for another command, if it can take one: see Guard.Idle.
	// Such commands run in the guard's session, each in a group of its own. KeepGuard has no effect
	// with a terminal, since a terminal sends signals to sessions and groups.
	KeepGuard bool

	// Unkillable is called, once, with the names of processes that can't be killed after a failed
	// start, for which StartCommand then waits. Once there is a Child, its Events name them.
	Unkillable func(names string)
}

// graceEnd is when the tree gets SIGKILL if the lock is lost now. However long the LostGrace is,
// that is before the server's lease is over, after which somebody else may get the lock.
func (spec *Spec) graceEnd(deadline boottime.Instant) boottime.Instant {
	return min(boottime.Now().Add(spec.LostGrace), deadline.Add(spec.MostGrace))
}

// Child is a command under a guard, and all the processes below it.
type Child struct {
	guard  *Guard
	spec   Spec
	pid    int // the command's
	born   boottime.Instant
	events chan Event
	done   chan struct{}
	result Result

	excused atomic.Bool // the guard has said what it can't kill, so it isn't killed for being late
	late    atomic.Bool // pglead has killed the guard for being late

	mu      sync.Mutex       // guards all that follows
	ordered bool             // pglead has given the guard an order
	over    bool             // the tree is dead, and the guard may have another command
	renewed boottime.Instant // the last deadline that was sent to the guard
}

// Result is how a child ended.
type Result struct {
	Ending Ending
	Status unix.WaitStatus // the command's, unless the guard died
	Killed int64           // how many processes had to be killed
}

// Ending is why a tree ended.
type Ending int64

// The endings, and what each means.
const (
	Exited       Ending = iota // the command ended by itself, or by a signal that was meant for it
	ByOrder                    // pglead ordered it: Kill, or TellLost
	LeaseOver                  // pglead has not renewed the deadline: the lock may be lost
	SocketClosed               // the server closed the lock's connection
	pgleadGone                 // pglead is dead, so nobody reads this
	GuardDied                  // the guard was killed, and then the tree; pglead, not the guard, finds that
	GuardLate                  // the guard did not carry out an order in time: pglead killed it, and then the tree
)

// Event is something that happens to a child before its end. One field is set.
type Event struct {
	// Stopped says that a signal has stopped the command.
	Stopped bool
	// Leftovers names the processes that outlive the command.
	Leftovers string
	// Unkillable names processes that SIGKILL doesn't reach: those of another
	// user, or in an uninterruptible wait.
	Unkillable string
}

// PID is the command's process number.
func (c *Child) PID() int { return c.pid }

// Born is the instant just before the command's process was made. Signals that the
// terminal sent to the group before that did not reach the command.
func (c *Child) Born() boottime.Instant { return c.born }

// Events delivers what happens before the end.
func (c *Child) Events() <-chan Event { return c.events }

// Done is closed when the command and every process that it started are dead
// and reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// Result says how the child ended. It may be called once Done is closed.
func (c *Child) Result() Result { return c.result }

// listen turns the guard's messages into events, and its end into Done.
func (c *Child) listen() {
	for {
		k, body, err := readMessage(c.guard.control)
		if err != nil {
			c.result.Ending = GuardDied
			if c.late.Load() {
				c.result.Ending, c.result.Status = GuardLate, unix.WaitStatus(unix.SIGKILL)
			}
			c.result.Killed = c.guard.parent.killInPlaceOf(c.guard, func(names string) { c.offer(Event{Unkillable: names}) })
			close(c.done)
			return
		}
		switch k {
		case msgStopped:
			c.offer(Event{Stopped: true})
		case msgLeftovers:
			c.offer(Event{Leftovers: string(body)})
		case msgUnkillable:
			c.excused.Store(true)
			c.offer(Event{Unkillable: string(body)})
		case msgDone:
			var report doneReport
			if report.decode(body) != nil {
				continue
			}
			idle := c.end(report)
			close(c.done) // the lock can be released before the guard has ended
			if !idle {
				c.guard.hangUp()
				c.guard.reap()
			}
			return
		}
	}
}

// end notes the end of the tree, and whether the guard is idle again. It is not if an order may be
// on its way to it, which would reach the next command.
func (c *Child) end(report doneReport) (idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	idle = report.Idle && !c.ordered
	c.result, c.over, c.guard.idle = report.Result, true, idle
	return idle
}

// offer delivers an event. It drops the event if nobody reads: the end of the tree must
// not wait for a reader.
func (c *Child) offer(e Event) {
	select {
	case c.events <- e:
	default:
	}
}

// Signal sends a signal to the command itself or, if that has ended, to all that it left running.
func (c *Child) Signal(sig unix.Signal) { c.order(msgSignal, int64(sig)) }

// killPatience is how long the guard may take after an order to kill. A guard that can't kill a
// process says so after unkillableAfter, and then it may take longer.
const killPatience = 2 * unkillableAfter

// Kill kills the tree.
func (c *Child) Kill() {
	if c.order(msgKill, 0) {
		time.AfterFunc(killPatience, c.killGuard)
	}
}

// TellLost tells the guard that the lock is lost. The guard ends the tree: at once
// or, with a LostGrace, by SIGTERM first.
func (c *Child) TellLost() {
	if !c.order(msgLost, 0) {
		return
	}
	c.mu.Lock()
	deadline := c.renewed
	c.mu.Unlock()
	grace := max(0, boottime.Until(c.spec.graceEnd(deadline)))
	time.AfterFunc(grace+c.spec.GuardPatience, c.killGuard)
}

// order gives the guard an order. It returns false if the command is dead.
func (c *Child) order(k kind, n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	c.ordered = true
	c.guard.send(guardOrder{k, n})
	return true
}

// killGuard kills a guard that has not carried out an order, and has not said why. It hangs up,
// too: a debugger may keep the guard from dying, and then listen would not notice.
func (c *Child) killGuard() {
	if !c.excused.Load() {
		c.late.Store(true)
		c.guard.sigkill()
		c.guard.hangUp()
	}
}

// renewalStep is the least move of a deadline that is worth sending. Every answer of the server
// moves it, on a list thousands of times a second. The guard reads the pipe only when the deadline
// that it knows has passed. The pipe has room for 8,192 deadlines, or for 512 if the user has many
// pipes (pipe(7)). With a lease of hours it may fill up before that. Then the guard reads, at its
// deadline, one that is minutes later, and the pipe has room again.
const renewalStep = 250 * time.Millisecond

// Renew moves the deadline.
func (c *Child) Renew(deadline boottime.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over && deadline.Sub(c.renewed) >= renewalStep && c.guard.renew(deadline) {
		c.renewed = deadline
	}
}
