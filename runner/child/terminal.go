package child

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Forward passes a caught signal on, unless the command has it from the terminal already: a
// terminal sends SIGINT, SIGQUIT and SIGWINCH to its whole foreground group, to which the command
// belongs. To many commands a second SIGINT means something else.
func (c *Child) Forward(sig unix.Signal) {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH:
		if byTerminal(sig) {
			return
		}
	}
	c.Signal(sig)
}

// StopWith stops this process after the command was stopped, so that the shell gets its
// terminal back. It does nothing if the terminal stopped both and both already go on.
// Without a terminal it does nothing either: the command may have been stopped
// for any reason.
func (c *Child) StopWith() {
	if inForeground() && isStopped(c.pid) {
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
}

// inForeground says whether the terminal sends its signals to this process's group.
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
