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

// StopPglead stops this process after the command was stopped, so that the shell gets its
// terminal back. It does nothing if the terminal stopped both and both already go on.
// Without a terminal it does nothing either: the command may have been stopped
// for any reason.
func (c *Child) StopPglead() {
	if inForeground() && isStopped(c.pid) {
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
}

// openTerminal opens the terminal of this process's session (tty(4)).
func openTerminal() (*os.File, error) {
	return os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
}

// inForeground says whether the terminal sends its signals to this process's group.
func inForeground() bool {
	tty, err := openTerminal()
	if err != nil {
		return false
	}
	defer tty.Close()
	return foregroundGroup(tty) == unix.Getpgrp()
}

// foregroundGroup is the process group in a terminal's foreground, or 0.
func foregroundGroup(tty *os.File) int {
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// SaveTerminal saves the modes of this process's terminal before a command, if this process is in
// its foreground. An editor reads keys without an echo, and an interactive shell puts a group of
// its own into the foreground. If they are killed they can't undo that. Then restore
// does, since shells take over the modes that a process leaves.
func SaveTerminal() (restore func()) {
	tty, err := openTerminal()
	if err != nil {
		return func() {}
	}
	defer tty.Close()
	modes, err := unix.IoctlGetTermios(int(tty.Fd()), getModes)
	if err != nil || foregroundGroup(tty) != unix.Getpgrp() {
		return func() {}
	}
	return func() { restoreTerminal(modes) }
}

// restoreTerminal gives the terminal its modes again, and puts this process's group into its
// foreground, if the group there is dead. If another is there the terminal is not this process's
// any more: a shell has it after Ctrl-Z.
func restoreTerminal(modes *unix.Termios) {
	tty, err := openTerminal()
	if err != nil {
		return
	}
	defer tty.Close()
	own, group := unix.Getpgrp(), foregroundGroup(tty)
	if group == 0 || group != own && !errors.Is(unix.Kill(-group, 0), unix.ESRCH) {
		return
	}
	defer ignoreStop(unix.SIGTTOU)() // which stops those who do this from the background
	_ = unix.IoctlSetPointerInt(int(tty.Fd()), unix.TIOCSPGRP, own)
	_ = unix.IoctlSetTermios(int(tty.Fd()), setModes, modes)
}

// noTerminal says that this process's session has no terminal.
func noTerminal() bool {
	tty, err := openTerminal()
	if err == nil {
		_ = tty.Close()
	}
	return errors.Is(err, unix.ENXIO)
}
