//go:build unix && !linux

package session

import (
	"context"
	"net"
	"syscall"
	"time"
)

// userTimeout does nothing on this system. Only the heartbeat notices the server's silence, and
// keepalives end the connection when the lease is over.
func userTimeout(time.Duration) func(context.Context, string, string, syscall.RawConn) error {
	return nil
}

// acknowledge does nothing on this system, which has no option for it.
func acknowledge(net.Conn) {}
