//go:build unix && !linux

package localpg

import "syscall"

// endWithParent has no counterpart here: after its keeper's death the server
// stays until the machine is restarted.
func endWithParent(*syscall.SysProcAttr) {}
