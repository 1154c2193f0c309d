package child

import (
	"time"

	"golang.org/x/sys/unix"
)

// releaseMost is how long the guard tries to send the release.
const releaseMost = time.Second

// sendRelease gives the lock back in place of a pglead that is gone, or stopped: it says
// that the tree is dead, so that waiters need not wait until it must be. If the connection
// ends with that, it ends this direction.
func (g *guardProcess) sendRelease() {
	deadline := time.Now().Add(releaseMost)
	for left := g.req.Release; len(left) > 0; {
		n, err := unix.Write(g.socket, left)
		switch {
		case err == unix.EAGAIN && await(g.socket, unix.POLLOUT, deadline):
		case err == unix.EINTR:
		case err != nil:
			_ = unix.Shutdown(g.socket, unix.SHUT_RDWR)
			return
		}
		left = left[max(0, n):]
	}
	if g.req.ReleaseEndsSession {
		_ = unix.Shutdown(g.socket, unix.SHUT_WR)
	}
}

// drainSocket waits for the server to end the connection: one that is reset could lose
// bytes that the server has not read yet.
func (g *guardProcess) drainSocket() {
	deadline := time.Now().Add(releaseMost)
	rest := make([]byte, 4096)
	for {
		n, err := unix.Read(g.socket, rest)
		switch {
		case err == unix.EAGAIN && await(g.socket, unix.POLLIN, deadline):
		case err == unix.EINTR:
		case err != nil || n == 0 || !time.Now().Before(deadline):
			return
		}
	}
}

// await waits for a socket to be ready, and says false once the deadline has passed.
func await(socket int, events int16, deadline time.Time) bool {
	fds := []unix.PollFd{{Fd: int32(socket), Events: events}}
	left := time.Until(deadline)
	if left <= 0 {
		return false
	}
	_, err := unix.Poll(fds, int(left.Milliseconds())+1)
	return err == nil || err == unix.EINTR
}
