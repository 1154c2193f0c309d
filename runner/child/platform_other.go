//go:build unix && !linux && !freebsd

package child

import "syscall"

// becomeSubreaper has no counterpart on macOS: a daemon whose parent has died
// is launchd's child and out of reach.
func becomeSubreaper() error { return nil }

// commandAttributes puts the command into a process group. Nothing kills it
// when the guard dies.
func commandAttributes(group int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: group}
}
