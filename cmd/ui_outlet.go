package cmd

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// outlet writes messages, one after the other, and never makes anyone wait: the reader
// of standard error may be slow, stopped or gone while a lock is lost and a command has to
// be killed. outlet has a goroutine while there is something to write.
type outlet struct {
	w    io.Writer
	note func(dropped int) []byte // the message in place of those that were dropped

	mu      sync.Mutex
	queue   [][]byte
	dropped int           // how many messages are missing before the first in the queue
	done    chan struct{} // closed when all is written; nil if there is nothing to write
}

const (
	// mostQueued is how many messages may wait. outlet drops the oldest: the last ones say
	// what ended pglead.
	mostQueued = 256
	// flushMost is how long the end of the process waits until the last ones are written.
	flushMost = time.Second
)

func (o *outlet) Write(message []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == mostQueued {
		o.queue = o.queue[1:]
		o.dropped++
	}
	o.queue = append(o.queue, slices.Clone(message))
	if o.done == nil {
		o.done = make(chan struct{})
		go o.drain()
	}
	return len(message), nil
}

func (o *outlet) drain() {
	for {
		var message []byte
		o.mu.Lock()
		switch {
		case o.dropped > 0:
			message, o.dropped = o.note(o.dropped), 0
		case len(o.queue) > 0:
			message, o.queue = o.queue[0], o.queue[1:]
		default:
			close(o.done)
			o.done = nil
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		_, _ = o.w.Write(message)
	}
}

// busy says whether anything waits to be written.
func (o *outlet) busy() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done != nil
}

// flush waits until all is written, but no longer than most.
func (o *outlet) flush(most time.Duration) {
	o.mu.Lock()
	done := o.done
	o.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-time.After(most):
	}
}

// descriptor writes without os.File, which would let this process die of SIGPIPE once the
// reader of standard error is gone. It does not change the descriptor that the command
// inherits. Another process may have made it non-blocking.
type descriptor int

func (d descriptor) Write(p []byte) (written int, err error) {
	for written < len(p) {
		n, err := unix.Write(int(d), p[written:])
		written += max(0, n)
		switch {
		case errors.Is(err, unix.EAGAIN):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(d), Events: unix.POLLOUT}}, -1)
		case err != nil && !errors.Is(err, unix.EINTR):
			return written, err
		}
	}
	return written, nil
}
