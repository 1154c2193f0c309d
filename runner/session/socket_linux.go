package session

import (
	"context"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout makes the kernel give up a connection if the peer has not acknowledged data for d.
// The kernel's own default is about a quarter of an hour (tcp(7), TCP_USER_TIMEOUT).
func userTimeout(d time.Duration) func(context.Context, string, string, syscall.RawConn) error {
	return func(_ context.Context, network, _ string, raw syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		var err error
		if controlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		}); controlErr != nil {
			return controlErr
		}
		return err
	}
}

// acknowledge tells the peer at once that what was read has arrived. Linux may wait 40 ms (tcp(7),
// TCP_QUICKACK). If this host were cut off meanwhile, the server would send its answer again, and
// a host that had got our address would answer that with a reset, which frees the lock.
func acknowledge(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
		})
	}
}
