package localpg

import "syscall"

// endWithParent makes the kernel request a fast shutdown when the parent dies.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
