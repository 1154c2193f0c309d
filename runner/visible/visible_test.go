package visible

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// FuzzText: what others wrote is one line, of a bounded length, with nothing
// in it that has an effect.
func FuzzText(f *testing.F) {
	f.Add("l’été à 10 %")
	f.Add("x\x1b[2J\x07\nforged: y\r\t\u202e\u2066\u009b31m\u0085\u2028\x7f\xff\xc3z")
	f.Fuzz(func(t *testing.T, s string) {
		text := Text(s)
		if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !Rune(r) }) {
			t.Errorf("%q is %q", s, text)
		}
		if utf8.RuneCountInString(text) > most+10 {
			t.Errorf("%d characters", utf8.RuneCountInString(text))
		}
		if !strings.ContainsFunc(s, func(r rune) bool { return !Rune(r) }) && utf8.ValidString(s) && utf8.RuneCountInString(s) <= most && text != s {
			t.Errorf("%q is %q", s, text)
		}
	})
}

func TestShellWord(t *testing.T) {
	for s, want := range map[string]string{
		"": "''", "import/a": "import/a", "/home/ä/.pgpass": "/home/ä/.pgpass", "a b": "'a b'", "it's": `'it'\''s'`, "$HOME": "'$HOME'", "~/x": "'~/x'",
	} {
		if got := ShellWord(s); got != want {
			t.Errorf("%q is %s, want %s", s, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 10 * time.Second: "10s", 10 * time.Minute: "10m", 2 * time.Hour: "2h", 90 * time.Minute: "1h30m",
		time.Hour + time.Second: "1h0m1s", 1500 * time.Millisecond: "1.5s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}
