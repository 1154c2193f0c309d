package cmd

import (
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// statusLine is the state of the terminal's last line, which is overwritten again and
// again, and makes room for messages.
type statusLine int

const (
	statusHidden statusLine = iota
	statusShown
	statusOver // no other will follow
)

// eraseRest makes a terminal erase from the cursor to the line's end.
const eraseRest = "\x1b[K"

// watched says whether somebody at a terminal reads the messages.
func (u *ui) watched() bool {
	return u.width != nil && !u.json && u.level.Level() <= slog.LevelWarn
}

// hasStatus says whether there is a terminal for the status line.
func (u *ui) hasStatus() bool { return u.watched() && overwrites() }

// overwrites says whether the user's terminal obeys escape sequences.
func overwrites() bool { return os.Getenv("TERM") != "dumb" }

// setStatus writes the status line, unless this process is in the background.
func (u *ui) setStatus(text string) {
	width := u.width()
	u.mu.Lock()
	defer u.mu.Unlock()
	if width == 0 || u.status == statusOver || u.out != nil && u.out.busy() {
		return // the next status will do
	}
	u.status = statusShown
	_, _ = io.WriteString(u.w, "\r"+shorten(text, width-1)+eraseRest)
}

// clearMost is how long clearStatus waits for a terminal that may be stopped.
const clearMost = 100 * time.Millisecond

// clearStatus removes the status line, and waits until it is gone: the command may be about to
// write to the same terminal. next is statusOver if the process is about to end.
func (u *ui) clearStatus(next statusLine) {
	u.mu.Lock()
	if room := u.makeRoom(); room != nil {
		_, _ = u.w.Write(room)
	}
	if u.status != statusOver {
		u.status = next
	}
	u.mu.Unlock()
	if u.out != nil {
		u.out.flush(clearMost)
	}
}

// makeRoom is what to write before a message. The caller has u.mu.
func (u *ui) makeRoom() []byte {
	if u.status != statusShown {
		return nil
	}
	u.status = statusHidden
	return []byte("\r" + eraseRest)
}

// isTerminal says whether a file is a terminal.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// foreground is the width of a terminal, or 0 if the file is no terminal or this process
// is in its background.
func foreground(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return 0
	}
	if size.Col == 0 { // script(1) without a terminal, or a serial line: nobody has told the kernel
		return pageWidth
	}
	const narrowest = 20
	return max(int(size.Col), narrowest)
}
