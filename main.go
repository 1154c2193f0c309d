// The number of processors is not looked up again and again by a process that
// waits for months.
//
//go:debug updatemaxprocs=0

// Command pglead runs a command on at most one machine at a time, by means of
// a PostgreSQL advisory lock.
package main

import (
	"os"

	"github.com/pglead/pglead/cmd"
)

func main() {
	os.Exit(cmd.Main(os.Args[1:]))
}
