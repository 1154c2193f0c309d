package cmd

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/inspect"
)

// TestTableWidth: a table fits into 80 columns, whatever is in it.
func TestTableWidth(t *testing.T) {
	now := time.Now()
	long := strings.Repeat("long/", 30)
	v := inspect.View{
		Database: "app", ID: lockkey.SipHash24(long), Granted: true, Described: true, Now: now, Backend: 4194303,
		Description: describe.Description{
			Keys: []string{long}, Host: strings.Repeat("host", 20), PID: 4194303, Command: long, Since: now.Add(-400 * 24 * time.Hour), Token: 1<<48 + 1<<40,
		},
	}
	for line := range strings.Lines(table{all: true, width: 80}.text(inspect.Locks([]inspect.View{v}))) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// TestWideCharacters: columns are aligned, and texts cut, by what a terminal shows.
func TestWideCharacters(t *testing.T) {
	lines := columns([][]string{{"锁", "1"}, {"ab", "2"}, {"e\u0301e\u0301", "3"}, {"🔒", "4"}}, 0)
	if want := []string{"锁  1", "ab  2", "e\u0301e\u0301  3", "🔒  4"}; !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
	for _, got := range []struct{ text, want string }{
		{shorten("锁锁锁", 6), "锁锁锁"}, {shorten("锁锁锁", 5), "锁锁…"}, {shorten("锁锁锁", 4), "锁…"},
		{squeeze("锁锁锁锁锁", 10), "锁锁锁锁锁"}, {squeeze("锁锁锁锁/1", 9), "锁…锁锁/1"}, {squeeze("abcdefgh", 7), "ab…efgh"},
	} {
		if got.text != got.want {
			t.Errorf("%q, want %q", got.text, got.want)
		}
	}
}
