package cmd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
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
type voice struct {
	log   *slog.Logger
	w     io.Writer
	json  bool
	level slog.LevelVar
}

func newVoice(w io.Writer) *voice {
	v := &voice{w: w}
	v.level.Set(slog.LevelWarn)
	v.log = slog.New(&textHandler{voice: v, mu: &sync.Mutex{}})
	return v
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
		v.log = slog.New(slog.NewJSONHandler(v.w, &slog.HandlerOptions{Level: &v.level}))
	}
	if !asJSON {
		keys = slices.Clone(keys)
		for i, key := range keys {
			keys[i] = printable(key)
		}
	}
	v.log = v.log.With("key", strings.Join(keys, ", "))
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
		fmt.Fprintf(v.w, "pglead: hint: %s\n", hint)
	}
}

// announce says what has to be said every time, even with -q.
func (v *voice) announce(message, event string) {
	v.log.Error(message, "event", event)
}

// textHandler writes records for people.
type textHandler struct {
	voice *voice
	mu    *sync.Mutex
	key   string
	attrs []slog.Attr
}

func (h *textHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.voice.level.Level()
}

func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString("pglead: ")
	if h.key != "" {
		b.WriteString(h.key + ": ")
	}
	b.WriteString(oneLine(r.Message))
	write := func(a slog.Attr) bool {
		if a.Key != "event" && a.Key != "code" {
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
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := io.WriteString(h.voice.w, b.String())
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
