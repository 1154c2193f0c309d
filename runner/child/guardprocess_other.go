//go:build unix && !linux

package child

import (
	"os"
)

func selfExe() string {
	path, _ := os.Executable()
	return path
}

// setThreadName: argv[0] is all that these systems let a process choose.
func setThreadName(string) {}

func (g *guard) firstInstants() {}

// hangup: without POLLRDHUP the end of a connection can't be seen unless it is
// read from, which is pglead's business.
func hangup(int) <-chan struct{} { return nil }
