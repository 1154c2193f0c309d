//go:build unix && !linux

package child

import "os"

func selfExe() string {
	path, _ := os.Executable()
	return path
}

// setThreadName does nothing: argv[0] is all that a process can choose here.
func setThreadName(string) {}

func (g *guardProcess) firstInstants() (brief bool) { return false }

// closed never tells: see hangup.
func closed(int) bool { return false }

// serverHungUp is nothing: see hangup.
const serverHungUp = 0

// hangup never tells: without POLLRDHUP only the process that reads from a connection
// sees its end, and that is pglead.
func hangup(int) <-chan struct{} { return nil }
