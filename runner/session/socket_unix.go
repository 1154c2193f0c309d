//go:build unix && !linux

package session

import (
	"context"
	"syscall"
	"time"
)

// userTimeout has no counterpart here: the heartbeat alone notices silence, and
// keepalives end the connection when the lease is over.
func userTimeout(time.Duration) func(context.Context, string, string, syscall.RawConn) error {
	return nil
}
