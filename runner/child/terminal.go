package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// Forward passes a caught signal on, unless the terminal has done so already:
// it sends SIGINT, SIGQUIT and SIGWINCH to its whole foreground group, which
// the command is in, and a second SIGINT means something else to many.
func (c *Child) Forward(sig unix.Signal) {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH:
		if byTerminal(sig) {
			return
		}
	}
	c.Signal(sig)
}

// StopWith stops this process as the command has been stopped, so that the
// shell gets its terminal back. Where the terminal has stopped both together
// the command is running again by now. Without a terminal a stopped command is
// somebody's doing who knows what for.
func (c *Child) StopWith() {
	if inForeground() && isStopped(c.pid) {
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
}

// inForeground says whether this process's group is the one that the terminal
// sends its signals to.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
