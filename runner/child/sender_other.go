//go:build unix && !(linux && (amd64 || arm64))

package child

import "golang.org/x/sys/unix"

func noteSenders(...unix.Signal) {}

// byTerminal takes each signal for the terminal's while this process is in the
// terminal's foreground group.
func byTerminal(unix.Signal) bool { return inForeground() }
