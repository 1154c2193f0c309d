package cmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/width"

	"github.com/pglead/pglead/runner/visible"
)

// printable quotes a text that a line would not show as it is.
func printable(s string) string {
	if s == "" || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
		return strconv.Quote(s)
	}
	return s
}

// cells is how many cells of a terminal a text takes: a Chinese character or an emoji takes two,
// and a combining mark none.
func cells(s string) (n int) {
	for _, r := range s {
		n += cellsOf(r)
	}
	return n
}

func cellsOf(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// shorten cuts a text to this many of a terminal's cells.
func shorten(s string, most int) string {
	if cells(s) <= most {
		return s
	}
	return string(upTo([]rune(s), most-1)) + "…"
}

// squeeze shortens a text in the middle, since the end of a key, with the slot, tells more.
func squeeze(s string, most int) string {
	if cells(s) <= most {
		return s
	}
	runes := []rune(s)
	head := upTo(runes, (most-1)/3)
	slices.Reverse(runes)
	tail := upTo(runes, most-1-(most-1)/3)
	slices.Reverse(tail)
	return string(head) + "…" + string(tail)
}

// upTo is a copy of the first runes that fit into this many cells.
func upTo(runes []rune, most int) []rune {
	for i, r := range runes {
		if most -= cellsOf(r); most < 0 {
			return slices.Clone(runes[:i])
		}
	}
	return slices.Clone(runes)
}

// wrap breaks a text at its spaces. A word that is longer than a line gets its own line.
func wrap(text string, most int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case cells(line)+1+cells(word) <= most:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// plural is a count of things: 1 run, 2 runs.
func plural[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// few names the first of a list, and says how many more there are.
func few(list []string, most int) string {
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// Instants and durations are cut off, never rounded: what ended at 12:00:59.9 did
// not end at 12:01.

// brief is a duration in at most two units: 3d4h, 12m5s.
func brief(d time.Duration) string {
	d = d.Truncate(time.Second)
	switch {
	case d >= day:
		return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
	case d >= time.Hour:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return d.String()
}

// took is how long a run lasted: 0.4s, 42s, 1m02s, 3h05m, 2d03h.
func took(d time.Duration) string {
	whole := d.Truncate(time.Second)
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case whole < time.Minute:
		return fmt.Sprintf("%ds", whole/time.Second)
	case whole < time.Hour:
		return fmt.Sprintf("%dm%02ds", whole/time.Minute, whole%time.Minute/time.Second)
	case whole < day:
		return fmt.Sprintf("%dh%02dm", whole/time.Hour, whole%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", whole/day, whole%day/time.Hour)
}

// roughly is a duration in one unit: 40s, 12m, 26h, 3d.
func roughly(d time.Duration) string {
	switch d = max(0, d); {
	case d < 100*time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 100*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 49*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

// whenExactly is an instant in a table of runs: one minute may have several.
func whenExactly(t, now time.Time) string {
	if now.Sub(t) > 300*day {
		return t.Local().Format("Jan _2 2006")
	}
	return t.Local().Format("Jan _2 15:04:05")
}

// when is an instant in a sentence.
func when(t, now time.Time) string {
	if now.Sub(t) > 300*day {
		return t.Local().Format("Jan _2  2006")
	}
	return t.Local().Format("Jan _2 15:04")
}

func writeJSON(w io.Writer, value any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(escapeJSON(b.Bytes()))
	return err
}

// print writes the value in JSON, if --output asks for that, or else the text.
func (o *options) print(w io.Writer, value any, text string) error {
	if o.output.value == "json" {
		return writeJSON(w, value)
	}
	_, err := io.WriteString(w, text)
	return err
}

// escapeJSON escapes characters that affect a terminal and that encoding/json doesn't
// escape: DEL, the control characters beyond ASCII, bidi overrides. In JSON they can only
// occur in strings.
func escapeJSON(encoded []byte) []byte {
	var b []byte
	for _, r := range string(encoded) {
		switch {
		case r == '\n' || visible.Rune(r):
			b = utf8.AppendRune(b, r)
		case r > 0xffff:
			first, second := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, first, second)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return b
}
