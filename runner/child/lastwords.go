package child

import (
	"time"

	"golang.org/x/sys/unix"
)

// lastWordsMost is for how long the guard tries to be heard.
const lastWordsMost = time.Second

// speak says on the lock's socket, in the place of a pglead that is gone, that the
// tree is dead: those who wait need not wait for that. What they say ends the use
// of the connection, where nobody else's work depends on it, and the server's own
// end of it is waited for: else it could be reset before it is read.
func (g *guard) speak() {
	deadline := time.Now().Add(lastWordsMost)
	for words := []byte(g.req.lastWords); len(words) > 0; {
		n, err := unix.Write(g.socket, words)
		switch {
		case err == unix.EAGAIN && await(g.socket, unix.POLLOUT, deadline):
		case err == unix.EINTR:
		case err != nil:
			_ = unix.Shutdown(g.socket, unix.SHUT_RDWR)
			return
		}
		words = words[max(0, n):]
	}
	if g.req.goodbye == 0 {
		return
	}
	_ = unix.Shutdown(g.socket, unix.SHUT_WR)
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

// await says whether something can be done with a socket before the deadline.
func await(socket int, events int16, deadline time.Time) bool {
	fds := []unix.PollFd{{Fd: int32(socket), Events: events}}
	left := time.Until(deadline)
	if left <= 0 {
		return false
	}
	_, err := unix.Poll(fds, int(left.Milliseconds())+1)
	return err == nil || err == unix.EINTR
}
