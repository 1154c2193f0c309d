//go:build unix && !linux && !freebsd

package child

import "syscall"

// becomeSubreaper has no counterpart on macOS: a daemon whose parent has died
// is launchd's child and out of reach.
func becomeSubreaper() error { return nil }

// commandAttributes: nothing kills the command when the guard dies.
func commandAttributes(*int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{}
}
