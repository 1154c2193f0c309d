package cmd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// voice is all that pglead says on standard error. Standard output belongs to
// the command.
//
//	error    what ended pglead, and what its operator has to know
//	warning  what happened to the command, or that it didn't run; not with -q
//	info     every step; only with -v
//
// In text a message is one line that starts with "pglead: " and the key; a
// hint has a line of its own. In JSON it is one object a line, with "event"
// for programs and "msg" for people.
//
// On a terminal there may be a living line under all that: it is written again
// and again, and gives way to messages. In the journal each message has its
// priority. README lists the events.
type voice struct {
	log     *slog.Logger
	w       io.Writer
	json    bool
	key     string // what messages begin with
	level   slog.LevelVar
	journal bool // w is systemd's

	mu     sync.Mutex // of w, and of
	living bool       // there is a line that is not ended
}

func newVoice(w io.Writer) *voice {
	v := &voice{w: w, journal: toJournal(os.Stderr, os.Getenv("JOURNAL_STREAM"))}
	v.level.Set(slog.LevelWarn)
	v.log = slog.New(&textHandler{voice: v})
	return v
}

// live writes the living line. Its end is either the next message, or hush.
func (v *voice) live(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.living = true
	_, _ = io.WriteString(v.w, "\r"+text+eraseRest)
}

// hush takes the living line away.
func (v *voice) hush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.living {
		v.living = false
		_, _ = io.WriteString(v.w, "\r"+eraseRest)
	}
}

// eraseRest is a terminal's command: from the cursor to the line's end.
const eraseRest = "\x1b[K"

// Write writes messages, in one piece each. It is for slog.
func (v *voice) Write(message []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.living {
		v.living = false
		message = slices.Concat([]byte("\r"+eraseRest), message)
	}
	_, err := v.w.Write(message)
	return len(message), err
}

// priority is what the journal wants to have before a line.
// https://www.freedesktop.org/software/systemd/man/latest/sd-daemon.html
func (v *voice) priority(level slog.Level) string {
	switch {
	case !v.journal:
		return ""
	case level >= slog.LevelError:
		return "<3>"
	case level >= slog.LevelWarn:
		return "<4>"
	}
	return "<6>"
}

// jsonHandler writes records for programs.
type jsonHandler struct {
	slog.Handler
	buf *bytes.Buffer
	v   *voice
	mu  *sync.Mutex
}

func newJSONHandler(v *voice) *jsonHandler {
	var buf bytes.Buffer
	seconds := func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.Float64Value(a.Value.Duration().Seconds())
		}
		return a
	}
	return &jsonHandler{slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: &v.level, ReplaceAttr: seconds}), &buf, v, &sync.Mutex{}}
}

func (h *jsonHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Reset()
	h.buf.WriteString(h.v.priority(r.Level))
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	_, err := h.v.Write(h.buf.Bytes())
	return err
}

func (h *jsonHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.Handler = h.Handler.WithAttrs(attrs)
	return &with
}

// configure sets what -q, -v, --log-format and --key ask for.
func (v *voice) configure(quiet, verbose, asJSON bool, keys []string) {
	switch {
	case quiet:
		v.level.Set(slog.LevelError)
	case verbose:
		v.level.Set(slog.LevelInfo)
	}
	if asJSON {
		v.json = true
		v.log = slog.New(newJSONHandler(v))
	}
	if !asJSON {
		keys = slices.Clone(keys)
		for i, key := range keys {
			keys[i] = printable(key)
		}
	}
	v.key = strings.Join(keys, ", ")
	v.log = v.log.With("key", v.key)
}

// canLive says whether a living line has somebody to look at it.
func (v *voice) canLive() bool {
	return !v.json && v.level.Level() <= slog.LevelWarn && os.Getenv("CI") == "" && isTerminal(os.Stderr)
}

// fail says what ended pglead.
func (v *voice) fail(message, hint string, code int) {
	if v.json {
		attrs := []any{"event", "failed", "code", code}
		if hint != "" {
			attrs = append(attrs, "hint", hint)
		}
		v.log.Error(message, attrs...)
		return
	}
	v.log.Error(message)
	if hint != "" {
		fmt.Fprintf(v, "%spglead: hint: %s\n", v.priority(slog.LevelError), hint)
	}
}

// announce says what has to be said every time, even with -q.
func (v *voice) announce(message, event string) {
	v.log.Error(message, "event", event)
}

// textHandler writes records for people.
type textHandler struct {
	voice *voice
	key   string
	attrs []slog.Attr
}

func (h *textHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.voice.level.Level()
}

func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(h.voice.priority(r.Level) + "pglead: ")
	if h.key != "" {
		b.WriteString(h.key + ": ")
	}
	b.WriteString(oneLine(r.Message))
	write := func(a slog.Attr) bool {
		// What these say is in the message.
		if a.Key != "event" && a.Key != "code" && a.Key != "holder" {
			fmt.Fprintf(&b, " %s=%s", a.Key, printable(a.Value.String()))
		}
		return true
	}
	if h.voice.level.Level() <= slog.LevelInfo {
		for _, a := range h.attrs {
			write(a)
		}
		r.Attrs(write)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(h.voice, b.String())
	return err
}

func (h *textHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		switch a.Key {
		case "key":
			with.key = a.Value.String()
		case "item":
			with.key += ": " + printable(a.Value.String())
		default:
			with.attrs = append(with.attrs[:len(with.attrs):len(with.attrs)], a)
		}
	}
	return &with
}

func (h *textHandler) WithGroup(string) slog.Handler { return h }

// printable quotes what would not stand in a line as it is.
func printable(s string) string {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
		return strconv.Quote(s)
	}
	return s
}

// oneLine keeps what servers and operating systems say to one line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
}
