package child

import (
	"time"

	"golang.org/x/sys/unix"
)

// releaseMost is how long the guard tries to send the release.
const releaseMost = time.Second

// sendRelease releases the lock for a pglead that is gone or stopped. The release also tells the
// waiters that the tree is dead, so that they need not wait until it would certainly be dead. If
// the session ends with the release, sendRelease ends this direction of the connection, or both if
// the release could not be sent. If the session goes on, other guards may need the connection, and
// it stays open.
func (g *guardProcess) sendRelease() {
	deadline := time.Now().Add(releaseMost)
	for left := g.req.Release; len(left) > 0; {
		n, err := unix.Write(g.socket, left)
		switch {
		case err == unix.EAGAIN && awaitSocket(g.socket, unix.POLLOUT, deadline):
		case err == unix.EINTR:
		case err != nil:
			if g.req.ReleaseEndsSession {
				_ = unix.Shutdown(g.socket, unix.SHUT_RDWR)
			}
			return
		}
		left = left[max(0, n):]
	}
	if g.req.ReleaseEndsSession {
		_ = unix.Shutdown(g.socket, unix.SHUT_WR)
	}
}

// drainSocket waits for the server to end the connection. To close it with unread input would reset
// it, and bytes that the server has not read yet could be lost.
func (g *guardProcess) drainSocket() {
	deadline := time.Now().Add(releaseMost)
	rest := make([]byte, 4096)
	for {
		n, err := unix.Read(g.socket, rest)
		switch {
		case err == unix.EAGAIN && awaitSocket(g.socket, unix.POLLIN, deadline):
		case err == unix.EINTR:
		case err != nil || n == 0 || !time.Now().Before(deadline):
			return
		}
	}
}

// awaitSocket waits until a socket is ready. It returns false if the deadline has passed.
func awaitSocket(socket int, events int16, deadline time.Time) bool {
	fds := []unix.PollFd{{Fd: int32(socket), Events: events}}
	left := time.Until(deadline)
	if left <= 0 {
		return false
	}
	_, err := unix.Poll(fds, int(left.Milliseconds())+1)
	return err == nil || err == unix.EINTR
}
