package cmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/visible"
)

// ui writes all that pglead says on standard error. Standard output belongs to the
// command.
//
//	error    what ended pglead, what it has killed for a limit, and what else its operator
//	         has to know
//	warning  what happened to the command, or that it didn't run; not with -q
//	notice   that the lock was taken or released; only with -v, or in lead
//	info     every step; only with -v
//
// In text a message is one line that starts with "pglead: " and the key; a
// hint has its own line. In JSON it is one object a line, with "event"
// for programs and "msg" for people.
//
// On a terminal there may be a status line below the messages: see statusLine. In the
// journal each message has its priority. No message makes its caller wait: see outlet.
// REFERENCE.md lists the events.
type ui struct {
	log     *slog.Logger
	w       io.Writer
	out     *outlet    // w, if it is an outlet, or nil
	width   func() int // of the terminal, 0 in its background; nil if w is no terminal
	journal bool       // w is systemd's journal
	json    bool
	key     string // what messages start with
	level   slog.LevelVar

	configured bool

	mu     sync.Mutex // guards writing to w, and all fields below
	status statusLine
	hinted string // the last hint of a warning
	// The last message about an outage that is not over: its reason, and the words that say that the
	// outage still lasts.
	awayReason, awayStill string
}

func newUI(w io.Writer) *ui {
	u := &ui{w: w}
	u.level.Set(slog.LevelWarn)
	u.log = slog.New(&textHandler{ui: u})
	return u
}

func newStderrUI() *ui {
	out := &outlet{w: descriptor(unix.Stderr)}
	u := newUI(out)
	u.out, out.note = out, u.dropped
	var stat unix.Stat_t
	u.journal = unix.Fstat(int(os.Stderr.Fd()), &stat) == nil && os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
	if isTerminal(os.Stderr) && os.Getenv("CI") == "" {
		u.width = func() int { return foregroundWidth(os.Stderr) }
	}
	return u
}

// configure applies -q, -v, --log-format and --key.
func (u *ui) configure(quiet, verbose, asJSON bool, keys []string) {
	u.configured = true
	switch {
	case quiet:
		u.level.Set(slog.LevelError)
	case verbose:
		u.level.Set(slog.LevelInfo)
	}
	if asJSON {
		u.json = true
		u.log = slog.New(newJSONHandler(u))
	} else {
		keys = slices.Clone(keys)
		for i, key := range keys {
			keys[i] = printable(key)
		}
	}
	u.key = strings.Join(keys, ", ")
	u.log = u.log.With("key", u.key)
}

func (u *ui) setAway(reason, still string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.awayReason, u.awayStill = reason, still
}

// endText says why a run has ended and, if something was in the way until then, that it gave up. It
// does not repeat a reason from the previous line.
func (u *ui) endText(err error) string {
	text, reason := err.Error(), err.Error()
	if e, ok := errors.AsType[*explainedError](err); ok {
		reason = e.error.Error()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.json || u.awayReason == "" || !u.log.Enabled(context.Background(), slog.LevelWarn),
		errors.As(err, new(*runner.LockLostError)), errors.As(err, new(*child.GuardError)): // it was away only afterwards
		return text
	case u.awayReason != reason:
		return "gave up: " + text
	}
	return "gave up: " + u.awayStill
}

// say says what has happened and, if there is a hint, what the user can do about it.
func (u *ui) say(level slog.Level, message, hint string, attrs ...any) {
	ctx := context.Background()
	if u.json && hint != "" {
		attrs = append(attrs, "hint", hint)
	}
	u.log.Log(ctx, level, message, attrs...)
	if u.json || hint == "" || !u.log.Enabled(ctx, level) {
		return
	}
	u.mu.Lock()
	repeated := level >= slog.LevelError && hint == u.hinted // a warning has given it before
	u.hinted = hint
	u.mu.Unlock()
	if !repeated {
		fmt.Fprintf(u, "%spglead: hint: %s\n", u.priority(level), visible.Text(hint))
	}
}

// warnWatcher warns somebody at a terminal of what needs no warning in a log, or in cron's mail.
func (u *ui) warnWatcher(text string, attrs ...any) {
	level := slog.LevelInfo
	if u.watched() {
		level = slog.LevelWarn
	}
	u.log.Log(context.Background(), level, text, attrs...)
}

// remark reports what is odd in the environment. Without a ui it reports to nobody.
func (u *ui) remark(message, hint string) {
	if u != nil {
		u.say(slog.LevelWarn, message, hint, "event", "environment")
	}
}

// Write writes one message in one piece, for slog.
func (u *ui) Write(message []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, err := u.w.Write(slices.Concat(u.makeRoom(), message))
	return len(message), err
}

// dropped is a message that says how many others were dropped.
func (u *ui) dropped(n int) []byte {
	var buf bytes.Buffer
	aside := &ui{w: &buf, journal: u.journal}
	aside.level.Set(u.level.Level())
	log := slog.New(&textHandler{ui: aside})
	if u.json {
		log = slog.New(newJSONHandler(aside))
	}
	log.With("key", u.key).Warn(fmt.Sprintf("nobody read standard error in time: %d messages are missing here", n), "event", "dropped", "messages", n)
	return buf.Bytes()
}

// flush waits until all is written, but not for long.
func (u *ui) flush() {
	if u.out != nil {
		u.out.flush(flushMost)
	}
}

// priority is the journal's prefix of a line.
// https://www.freedesktop.org/software/systemd/man/latest/sd-daemon.html
func (u *ui) priority(level slog.Level) string {
	switch {
	case !u.journal:
		return ""
	case level >= slog.LevelError:
		return "<3>"
	case level >= slog.LevelWarn:
		return "<4>"
	case level >= lock.LevelNotice:
		return "<5>"
	}
	return "<6>"
}

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

// clearStatus removes the status line, and waits until it is gone, unless the process is about to
// end (statusOver): the command may be about to write to the same terminal.
func (u *ui) clearStatus(next statusLine) {
	u.mu.Lock()
	if room := u.makeRoom(); room != nil {
		_, _ = u.w.Write(room)
	}
	if u.status != statusOver {
		u.status = next
	}
	u.mu.Unlock()
	if u.out != nil && next != statusOver {
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

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// foregroundWidth is the width of a terminal, or 0 if the file is no terminal or this process
// is in its background.
func foregroundWidth(f *os.File) int {
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
