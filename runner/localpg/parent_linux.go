package localpg

import "syscall"

// endWithParent has the kernel ask for a fast shutdown when the parent dies.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }
