//go:build unix && !linux && !freebsd

package child

import "syscall"

// becomeSubreaper does nothing: a daemon whose parent has died is launchd's child on
// macOS, and out of reach.
func becomeSubreaper() error { return nil }

// commandAttributes are none: nothing kills the command when the guard dies.
func commandAttributes(*int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{}
}
