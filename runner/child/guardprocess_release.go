package child

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// What the guard does with the lock's connection once the tree is dead depends on what pglead can
// do:
//
//	pglead                       what has ended the tree  the guard
//	is gone                      all but SocketClosed     releases the lock (leaveSocket)
//	was gone before it had read  Exited                   releases the lock (releaseUntold)
//	that the tree is dead
//	is stopped, or cut off       LeaseOver                releases the lock, if the session ends with that; ends
//	                                                      the connection after SocketLinger (endConnection)
//	any                          SocketClosed             ends the connection (leaveSocket)
//	is alive                     any other                does nothing: pglead releases the lock

// leaveSocket releases the lock, or ends the connection, in case pglead is not there to
// do that. It is called when the tree is dead.
func (g *guardProcess) leaveSocket() {
	switch {
	case g.socket < 0:
	case g.orphaned && g.report.Ending != SocketClosed:
		g.releaseAndDrain()
	case g.report.Ending == LeaseOver:
		// pglead is stopped, or the server is silent. endConnection ends the connection later. If
		// it ended now, without a message, nobody could know yet that the holder was silent for
		// long enough.
		if g.spec.ReleaseEndsSession {
			g.sendRelease()
		}
	case g.report.Ending == SocketClosed:
		// pglead may be stopped. Then its own descriptor would keep the connection open without
		// need.
		_ = unix.Shutdown(g.socket, unix.SHUT_RDWR)
	}
	// If pglead is gone, the connection ends with the last guard that shares it: the others may
	// still be killing.
}

// releaseUntold releases the lock if pglead was killed before it had read that the tree is dead.
// Then pglead has not released the lock, nor used it for anything else. err is what ended the
// reading or writing of this side's messages: EPIPE says that pglead was gone before the report was
// written, and ECONNRESET that it left a message unread (unix_release_sock in net/unix/af_unix.c).
// After the end of the stream pglead may have released the lock. If it was killed just before that,
// nobody announces the end.
func (g *guardProcess) releaseUntold(err error) {
	told := !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET)
	if told || g.socket < 0 || g.orphaned || g.report.Ending != Exited {
		return
	}
	g.releaseAndDrain()
}

// endConnection ends the connection after SocketLinger, unless the server or pglead ends it
// earlier: pglead may be stopped, and would keep it open. A server that announces something to a
// stopped pglead's unix socket, when that is full, would wait for ever. The report to pglead is
// written by then.
//
// It ends a shared connection only if pglead still runs but has not read that report, which means
// that pglead is stopped. Otherwise other guards may need the connection.
func (g *guardProcess) endConnection() {
	if g.socket < 0 || g.report.Ending != LeaseOver {
		return
	}
	over := boottime.Now().Add(g.spec.SocketLinger)
	fds := []unix.PollFd{{Fd: int32(g.socket), Events: serverHungUp}, {Fd: int32(g.fd)}} // POLLHUP always counts
	for left := g.spec.SocketLinger; left > 0; left = boottime.Until(over) {
		if n, err := unix.Poll(fds, int(left.Milliseconds())+1); n > 0 || err != nil && err != unix.EINTR {
			break
		}
	}
	if !g.spec.SharesSocket || boottime.Until(over) <= 0 {
		_ = unix.Shutdown(g.socket, unix.SHUT_RDWR)
	}
}

// releaseMost is how long the guard tries to send the release, and then waits for the server.
const releaseMost = time.Second

// releaseAndDrain releases the lock for a pglead that is gone, and waits for the server to do so.
func (g *guardProcess) releaseAndDrain() {
	if len(g.spec.Release) > 0 {
		g.sendRelease()
		g.drainSocket()
	}
}

// sendRelease releases the lock for a pglead that is gone or stopped. The release also tells the
// others that the tree is dead, so that they need not wait until it would certainly be dead. If the
// release can't be sent, sendRelease ends the connection, unless the session goes on: other guards
// may need it. Otherwise the connection stays open in both directions. Of one that is half closed
// the server takes its client for lost (client_connection_check_interval), and carries out no more.
func (g *guardProcess) sendRelease() {
	deadline := time.Now().Add(releaseMost)
	for left := g.spec.Release; len(left) > 0; {
		n, err := unix.Write(g.socket, left)
		switch {
		case err == unix.EAGAIN && awaitSocket(g.socket, unix.POLLOUT, deadline):
		case err == unix.EINTR:
		case err != nil:
			if g.spec.ReleaseEndsSession {
				_ = unix.Shutdown(g.socket, unix.SHUT_RDWR)
			}
			return
		}
		left = left[max(0, n):]
	}
}

// drainSocket reads what the server sends, until the server ends the connection or releaseMost is
// over. If the connection were closed earlier, the server could not send its answers, and would end
// the session before it has carried out all of the release. A session that goes on after the
// release may have other guards, which read from the same connection. So none of them can tell the
// end of its own answers, and each reads for all of releaseMost.
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
