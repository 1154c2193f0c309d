// Package visible makes text that somebody else wrote, and durations, fit to be shown.
package visible

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// most is how many characters of a text are shown. Nobody reads more.
const most = 1000

// Text makes a text that somebody else wrote safe to show in a line of ours. A terminal obeys
// control characters and reverses lines at bidi overrides, and whoever reads a log line by line
// takes each line for ours. So what ends a line or a column becomes a space, other invisible
// characters are written as in Go's strings, and the length of the whole is limited.
func Text(s string) string {
	var b strings.Builder
	for n := 0; len(s) > 0; {
		if n >= most {
			b.WriteString("…")
			break
		}
		r, size := utf8.DecodeRuneInString(s)
		shown := s[:size]
		switch {
		case r == utf8.RuneError && size == 1:
			shown = fmt.Sprintf(`\x%02x`, s[0])
		case r == '\n', r == '\r', r == '\t':
			shown = " "
		case !Rune(r):
			quoted := strconv.QuoteRune(r)
			shown = quoted[1 : len(quoted)-1]
		}
		b.WriteString(shown)
		n += utf8.RuneCountInString(shown)
		s = s[size:]
	}
	return b.String()
}

// Rune says whether a character can be seen, or is a space. French messages have
// non-breaking spaces.
func Rune(r rune) bool { return unicode.IsPrint(r) || unicode.Is(unicode.Zs, r) }

// ShellWord is a text quoted as one shell word, for a command line in a hint.
func ShellWord(s string) string {
	special := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:@%+,", r)
	}
	if s != "" && !strings.ContainsFunc(s, special) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// Duration writes a duration as people do: 10m, not 10m0s.
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
