package child

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// order is something that the guard is told to do.
type order struct {
	kind kind
	n    int64
}

// Signal sends a signal to the command itself.
func (c *Child) Signal(sig unix.Signal) { c.order(msgSignal, int64(sig)) }

// killPatience is how long after an order to kill the guard may take to do it
// or to say why it can't: it says so after unkillableAfter.
const killPatience = 2 * unkillableAfter

// Kill kills the tree.
func (c *Child) Kill() {
	c.order(msgKill, 0)
	time.AfterFunc(killPatience, c.killGuard)
}

// Lose ends the tree because the lock is lost: at once or, with a LostGrace,
// by SIGTERM first.
func (c *Child) Lose() {
	c.order(msgLost, 0)
	patience := c.cfg.GuardPatience
	if patience <= 0 {
		patience = killPatience
	}
	c.writeMu.Lock()
	deadline := max(c.cfg.Deadline, time.Duration(c.renewed))
	c.writeMu.Unlock()
	grace := max(0, min(c.cfg.LostGrace, deadline+c.cfg.LeaseGrace-boottime.Now())) // as the guard has it
	time.AfterFunc(grace+patience, c.killGuard)
}

// order tells the guard to do something. It never blocks: the guard may be
// stopped, and this process has to go on, to notice that the lock is lost. What
// the socket has no room for is said when there is room, and once, as the kernel
// does with pending signals. If writing fails otherwise the guard is dead or
// done, and listen is about to find out.
func (c *Child) order(k kind, n int64) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	o := order{k, n}
	switch {
	case !c.saying:
		if errors.Is(c.tryToSay(o), unix.EAGAIN) {
			c.unsaid, c.saying = append(c.unsaid, o), true
			go c.sayRest()
		}
	case !slices.Contains(c.unsaid, o):
		c.unsaid = append(c.unsaid, o)
	}
}

// tryToSay writes a message if there is room for it. It is too short to be
// written in part.
func (c *Child) tryToSay(o order) error {
	raw, err := c.control.SyscallConn()
	if err != nil {
		return err
	}
	var msg bytes.Buffer
	_ = writeNumber(&msg, o.kind, o.n)
	if controlErr := raw.Control(func(fd uintptr) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			_, err = unix.Write(int(fd), msg.Bytes())
		}
	}); controlErr != nil {
		return controlErr
	}
	return err
}

// sayRest waits until the guard reads, or is dead: then hangUp ends the wait.
func (c *Child) sayRest() {
	for {
		c.writeMu.Lock()
		if len(c.unsaid) == 0 {
			c.saying = false
			c.writeMu.Unlock()
			return
		}
		o := c.unsaid[0]
		c.unsaid = c.unsaid[1:]
		c.writeMu.Unlock()
		_ = writeNumber(c.control, o.kind, o.n)
	}
}

// renewalStep is the least by which a deadline has to move to be worth telling.
// Every answer of the server moves it, thousands in a second if a session works
// on many items, and the pipe, which the guard reads once in a deadline, must not
// fill up: it has room for 8,192, or for 512 where the user has many pipes (pipe(7)).
const renewalStep = 250 * time.Millisecond

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
