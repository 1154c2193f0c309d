//go:build unix && !linux && !freebsd

package child

import "syscall"

// becomeSubreaper does nothing: on macOS a daemon whose parent has died becomes launchd's
// child, out of reach.
func becomeSubreaper() error { return nil }

// commandAttributes are none: nothing kills the command when the guard dies.
func commandAttributes(*int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{}
}

// guardAttributes are none: when this process dies, nothing wakes a guard that is stopped.
func guardAttributes() *syscall.SysProcAttr { return nil }
