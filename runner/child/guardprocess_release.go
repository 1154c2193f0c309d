package child

import (
	"time"

	"golang.org/x/sys/unix"
)

// releaseMost is how long the guard tries to send the release, and then waits for the server.
const releaseMost = time.Second

// releaseAndDrain releases the lock for a pglead that is gone, and waits for the server to do so.
func (g *guardProcess) releaseAndDrain() {
	if len(g.req.Release) > 0 {
		g.sendRelease()
		g.drainSocket()
	}
}

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

// drainSocket reads what the server sends, until the server ends the connection or releaseMost is
// over. If the connection were closed earlier, the server could not send its answers, and would end
// the session before it has carried out all of the release. The session of a list goes on after the
// release, and its guards read from one connection. So none of them can tell the end of its own
// answers, and each reads for all of releaseMost.
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
