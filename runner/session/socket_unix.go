//go:build unix && !linux

package session

import (
	"context"
	"syscall"
	"time"
)

// userTimeout does nothing here: only the heartbeat notices silence, and keepalives end
// the connection when the lease is over.
func userTimeout(time.Duration) func(context.Context, string, string, syscall.RawConn) error {
	return nil
}
