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

// killPatience is the time that the guard has, after an order to kill, to do it
// or to say why it can't, which it says after unkillableAfter.
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
	grace := max(0, min(c.cfg.LostGrace, deadline+c.cfg.LeaseGrace-boottime.Now())) // as in guardProcess.lose
	time.AfterFunc(grace+patience, c.killGuard)
}

// order tells the guard to do something. It never blocks: the guard may be
// stopped, and this process has to go on, to notice that the lock is lost. An order
// that the socket has no room for is sent later and, as the kernel does with pending
// signals, only once. If writing fails for another reason, the guard is dead or done,
// and listen is about to find out.
func (c *Child) order(k kind, n int64) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.retired { // the command is dead
		return
	}
	c.ordered = true
	o := order{k, n}
	switch {
	case !c.sending:
		if errors.Is(c.trySend(o), unix.EAGAIN) {
			c.unsent, c.sending = append(c.unsent, o), true
			go c.sendRest()
		}
	case !slices.Contains(c.unsent, o):
		c.unsent = append(c.unsent, o)
	}
}

// trySend sends an order if there is room for it. An order is too short to be
// written in part.
func (c *Child) trySend(o order) error {
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

// sendRest waits until the guard reads. Where the guard is dead, hangUp ends the
// wait.
func (c *Child) sendRest() {
	for {
		c.writeMu.Lock()
		if len(c.unsent) == 0 {
			c.sending = false
			c.writeMu.Unlock()
			return
		}
		o := c.unsent[0]
		c.unsent = c.unsent[1:]
		c.writeMu.Unlock()
		_ = writeNumber(c.control, o.kind, o.n)
	}
}

// renewalStep is the least by which a deadline has to move to be sent. Every answer
// of the server moves it, thousands in a second if a session works on many items,
// and the pipe, which the guard reads once in a deadline, must not fill up: it has
// room for 8,192, or for 512 where the user has many pipes (pipe(7)).
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

// hangUp closes this side's ends of the socket pair and the pipe, as far as there
// are any yet.
func (c *Child) hangUp() {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	_ = c.control.Close()
	if c.renewals >= 0 {
		_ = unix.Close(c.renewals)
		c.renewals = -1
	}
}
