package cmd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/visible"
)

// jsonHandler writes records for programs.
type jsonHandler struct {
	slog.Handler
	buf *bytes.Buffer
	ui  *ui
	mu  *sync.Mutex
}

func newJSONHandler(u *ui) *jsonHandler {
	var buf bytes.Buffer
	replace := func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			a.Value = slog.Float64Value(float64(a.Value.Duration()) / 1e9) // Seconds adds two parts, which shows
		}
		if a.Key == slog.LevelKey && a.Value.Any() == lock.LevelNotice {
			a.Value = slog.StringValue("NOTICE")
		}
		return a
	}
	return &jsonHandler{slog.NewJSONHandler(&buf, &slog.HandlerOptions{Level: &u.level, ReplaceAttr: replace}), &buf, u, &sync.Mutex{}}
}

func (h *jsonHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Reset()
	h.buf.WriteString(h.ui.priority(r.Level))
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	_, err := h.ui.Write(escapeJSON(h.buf.Bytes()))
	return err
}

func (h *jsonHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.Handler = h.Handler.WithAttrs(attrs)
	return &with
}

// textHandler writes records for people.
type textHandler struct {
	ui    *ui
	key   string
	attrs []slog.Attr
}

func (h *textHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.ui.level.Level()
}

func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(h.ui.priority(r.Level) + "pglead: ")
	if h.key != "" {
		b.WriteString(h.key + ": ")
	}
	b.WriteString(visible.Text(r.Message))
	write := func(a slog.Attr) bool {
		// The message says these already.
		if a.Key != "event" && a.Key != "code" && a.Key != "holder" {
			fmt.Fprintf(&b, " %s=%s", a.Key, printable(rounded(a.Value).String()))
		}
		return true
	}
	if h.ui.level.Level() <= slog.LevelInfo {
		for _, a := range h.attrs {
			write(a)
		}
		r.Attrs(write)
	}
	b.WriteByte('\n')
	_, err := io.WriteString(h.ui, b.String())
	return err
}

// mostOfItem is how many characters of an item a line shows, with the … in place of the rest.
const mostOfItem = 201

func (h *textHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	for _, a := range attrs {
		switch a.Key {
		case "key":
			with.key = a.Value.String()
		case "item":
			with.key += ": " + printable(shorten(a.Value.String(), mostOfItem))
		default:
			with.attrs = append(slices.Clip(with.attrs), a)
		}
	}
	return &with
}

func (h *textHandler) WithGroup(string) slog.Handler { return h }

// rounded keeps the significant digits of a duration.
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
