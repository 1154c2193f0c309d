package session

import (
	"context"
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
