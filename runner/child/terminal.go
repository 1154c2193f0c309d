package child

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Forward passes a caught signal on, unless the terminal has done so already:
// it sends SIGINT, SIGQUIT and SIGWINCH to its whole foreground group, to which the
// command belongs, and a second SIGINT means something else to many commands.
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
// shell gets its terminal back. Where the terminal has stopped both together,
// and both have been continued, it does nothing. Without a terminal it does nothing
// either: nobody here knows why the command was stopped.
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

// noTerminal says that this process's session has no terminal (tty(4)).
func noTerminal() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err == nil {
		_ = tty.Close()
	}
	return errors.Is(err, unix.ENXIO)
}
