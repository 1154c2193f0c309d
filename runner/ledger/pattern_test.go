package ledger

import (
	"regexp"
	"testing"
)

// TestPattern: what an argument stands for, in each of the forms that it takes.
func TestPattern(t *testing.T) {
	for arg, want := range map[string]struct {
		key  string
		one  bool
		like string
	}{
		"nightly":     {"nightly", true, `'nightly'`},
		`C:\jobs\x`:   {`C:\jobs\x`, true, `E'C:\\\\jobs\\\\x'`},
		`report\?`:    {"report?", true, `'report?'`},
		`\\\*`:        {`\*`, true, `E'\\\\*'`},
		"import/*":    {"", false, `'import/%'`},
		`a%_?\*é*`:    {"", false, `E'a\\%\\__*é%'`},
		`*\`:          {"", false, `E'%\\\\'`},
		`C:\jobs\\*`:  {"", false, `E'C:\\\\jobs\\\\%'`},
		"\xff?":       {"", false, `'?_'`},
		`with 'it' ?`: {"", false, `'with ''it'' _'`},
	} {
		p := ParsePattern(arg)
		if key, one := p.Key(); key != want.key || one != want.one {
			t.Errorf("%q stands for %q, one key: %t; want %q, %t", arg, key, one, want.key, want.one)
		}
		if got := p.like(); got != want.like {
			t.Errorf("%q is LIKE %s, want %s", arg, got, want.like)
		}
	}
	for _, key := range []string{"nightly", `C:\jobs`, "really?", `a\*?`} {
		if got, one := ParsePattern(PatternOf(key)).Key(); got != key || !one {
			t.Errorf("the argument for %q stands for %q, %t", key, got, one)
		}
	}
	for arg, keys := range map[string]map[string]bool{
		`job\?*`: {"job?": true, "job?s": true, "jobs": false, `job\?`: false},
		"a.?":    {"a.b": true, "a.é": true, "axb": false, "a.": false},
	} {
		matches := regexp.MustCompile("(?s)^(" + ParsePattern(arg).Expression() + ")$")
		for key, want := range keys {
			if got := matches.MatchString(key); got != want {
				t.Errorf("%q stands for %q: %t", arg, key, got)
			}
		}
	}
}
