//go:build unix && !(linux && (amd64 || arm64))

package child

import "golang.org/x/sys/unix"

func noteSenders(...unix.Signal) {}

// byTerminal takes what comes to the terminal's foreground group for the terminal's.
func byTerminal(unix.Signal) bool { return inForeground() }
