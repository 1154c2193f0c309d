//go:build unix && !linux

package session

import (
	"context"
	"syscall"
	"time"
)

// userTimeout has no counterpart here: the heartbeat alone notices silence.
func userTimeout(time.Duration) func(context.Context, string, string, syscall.RawConn) error {
	return nil
}
