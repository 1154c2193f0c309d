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
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/visible"
)

// voice is all that pglead says on standard error. Standard output belongs to
// the command.
//
//	error    what ended pglead, and what its operator has to know
//	warning  what happened to the command, or that it didn't run; not with -q
//	notice   that the lock was taken or given back; only with -v, but for lead
//	info     every step; only with -v
//
// In text a message is one line that starts with "pglead: " and the key; a
// hint has a line of its own. In JSON it is one object a line, with "event"
// for programs and "msg" for people.
//
// On a terminal there may be a living line under all that: it is written again
// and again, and gives way to messages. In the journal each message has its
// priority. No message keeps its speaker waiting: see outlet. README lists the events.
type voice struct {
	log     *slog.Logger
	w       io.Writer
	out     *outlet // that w is, or nil
	json    bool
	key     string // what messages begin with
	level   slog.LevelVar
	journal bool // w is systemd's

	mu     sync.Mutex // of w, and of
	living bool       // there is a line that is not ended
	ended  bool       // there will be none any more
}

func newVoice(w io.Writer) *voice {
	v := &voice{w: w, journal: toJournal(os.Stderr, os.Getenv("JOURNAL_STREAM"))}
	v.level.Set(slog.LevelWarn)
	v.log = slog.New(&textHandler{voice: v})
	return v
}

// newStderrVoice is the voice of this process.
func newStderrVoice() *voice {
	out := &outlet{w: descriptor(unix.Stderr)}
	v := newVoice(out)
	v.out, out.note = out, v.dropped
	return v
}

// flush is for the end of the process.
func (v *voice) flush() {
	if v.out != nil {
		v.out.flush()
	}
}

// dropped says how many messages were.
func (v *voice) dropped(n int) []byte {
	var buf bytes.Buffer
	aside := &voice{w: &buf, journal: v.journal}
	aside.level.Set(v.level.Level())
	log := slog.New(&textHandler{voice: aside})
	if v.json {
		log = slog.New(newJSONHandler(aside))
	}
	log.With("key", v.key).Warn(fmt.Sprintf("nobody read standard error in time: %d messages are missing here", n), "event", "dropped", "messages", n)
	return buf.Bytes()
}

// live writes the living line. Its end is either the next message, or hush.
func (v *voice) live(text string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended || v.out != nil && v.out.busy() {
		return // the next one will do
	}
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

// still takes the living line away for good: the end of the process is near.
func (v *voice) still() {
	v.hush()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ended = true
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
	case level >= runner.LevelNotice:
		return "<5>"
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
	replace := func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.Float64Value(a.Value.Duration().Seconds())
		}
		if a.Key == slog.LevelKey && a.Value.Any() == runner.LevelNotice {
			a.Value = slog.StringValue("NOTICE")
		}
		return a
	}
	return &jsonHandler{slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: &v.level, ReplaceAttr: replace}), &buf, v, &sync.Mutex{}}
}

func (h *jsonHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Reset()
	h.buf.WriteString(h.v.priority(r.Level))
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	_, err := h.v.Write(escapeJSON(h.buf.Bytes()))
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
	v.say(slog.LevelError, message, hint, "event", "failed", "code", code)
}

// warn says what an operator has to know, and what can be done about it.
func (v *voice) warn(message, hint string, attrs ...any) {
	v.say(slog.LevelWarn, message, hint, attrs...)
}

func (v *voice) say(level slog.Level, message, hint string, attrs ...any) {
	ctx := context.Background()
	if v.json && hint != "" {
		attrs = append(attrs, "hint", hint)
	}
	v.log.Log(ctx, level, message, attrs...)
	if !v.json && hint != "" && v.log.Enabled(ctx, level) {
		fmt.Fprintf(v, "%spglead: hint: %s\n", v.priority(level), oneLine(hint))
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
			fmt.Fprintf(&b, " %s=%s", a.Key, printable(rounded(a.Value).String()))
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

// rounded leaves a length of time the digits that say something.
func rounded(value slog.Value) slog.Value {
	if value.Kind() != slog.KindDuration {
		return value
	}
	to := time.Microsecond
	for d := value.Duration().Abs(); to < time.Second && d >= 1000*to; {
		to *= 10
	}
	return slog.DurationValue(value.Duration().Round(to))
}

// printable quotes what would not stand in a line as it is.
func printable(s string) string {
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
		return strconv.Quote(s)
	}
	return s
}

// oneLine keeps what servers and operating systems say to one line.
func oneLine(s string) string { return visible.Text(s) }
