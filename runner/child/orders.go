package child

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// Signal sends a signal to the command itself.
func (c *Child) Signal(sig unix.Signal) { c.order(msgSignal, int64(sig)) }

// killPatience is the time that the guard has, after an order to kill, to do it
// or to say why it can't, which it says after unkillableAfter.
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
	patience := c.cfg.GuardPatience
	if patience <= 0 {
		patience = killPatience
	}
	c.mu.Lock()
	deadline := c.renewed
	c.mu.Unlock()
	grace := max(0, min(c.cfg.LostGrace, boottime.Until(deadline.Add(c.cfg.LeaseGrace)))) // as in guardProcess.terminate
	time.AfterFunc(grace+patience, c.killGuard)
}

// order gives the guard an order. It says false if the command is dead and the guard
// another command's.
func (c *Child) order(k kind, n int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.orders == guardHandedOn {
		return false
	}
	c.orders = ordersGiven
	c.guard.send(order{k, n})
	return true
}

// killGuard kills a guard that doesn't do what it is told, and has not said why.
func (c *Child) killGuard() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.excused {
		c.guard.kill()
	}
}

// renewalStep is the least by which a deadline has to move to be sent. Every answer
// of the server moves it, thousands in a second if a session works on many items,
// and the pipe, which the guard reads once in a deadline, must not fill up: it has
// room for 8,192, or for 512 where the user has many pipes (pipe(7)).
const renewalStep = 250 * time.Millisecond

// Renew moves the deadline.
func (c *Child) Renew(deadline boottime.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.orders != guardHandedOn && deadline.Sub(c.renewed) >= renewalStep && c.guard.renew(deadline) {
		c.renewed = deadline
	}
}
