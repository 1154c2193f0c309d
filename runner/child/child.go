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
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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

// PID is the command's process number.
func (c *Child) PID() int { return c.pid }

// Events delivers what happens before the end.
func (c *Child) Events() <-chan Event { return c.events }

// Done is closed when the command and every process that it started are dead
// and reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// Result says how it ended. It may be called after Done.
func (c *Child) Result() Result { return c.result }

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
