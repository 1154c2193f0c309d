// The number of processors is not looked up again and again by a process that
// waits for months.
//
//go:debug updatemaxprocs=0

// Command pglead runs a command on at most one machine at a time, by means of
// a PostgreSQL advisory lock.
package main

import (
	"os"
	"runtime"
	_ "time/tzdata" // a minimal container has no zones, and all nodes must agree on the day of --once-per

	"github.com/pglead/pglead/cmd"
)

// main is one of three ways in. The guard's is an init that takes over before it (package child,
// guardprocess.go), the keeper's of an embedded server the first line of cmd.Main.
func main() {
	if os.Getenv("GOMAXPROCS") == "" {
		// pglead's goroutines wait for each other and for the server, and with more processors each
		// hand-over wakes another thread. With one a run takes 3 % less time.
		runtime.GOMAXPROCS(1)
	}
	os.Exit(cmd.Main(os.Args[1:]))
}
