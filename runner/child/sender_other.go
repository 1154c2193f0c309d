//go:build unix && !(linux && (amd64 || arm64))

package child

import "golang.org/x/sys/unix"

func installSenderHandlers(...unix.Signal) {}

// byTerminal assumes that a signal comes from the terminal while this process is in the
// terminal's foreground group.
func byTerminal(unix.Signal) bool { return inForeground() }
