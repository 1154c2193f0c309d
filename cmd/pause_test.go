package cmd

import (
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
)

func TestPausedLines(t *testing.T) {
	locks := func(key, note string) []*inspect.Pause {
		l := &inspect.Lock{Paused: pauseOf(key, ledger.Pause{Until: ledger.Endless(), By: "ann", Note: note})}
		return pausesOf([]*inspect.Lock{{}, l, l})
	}
	for _, tt := range []struct {
		key, note string
		want      string
	}{
		{"nightly", "disk swap", "nightly: no start until it is resumed (ann: disk swap)"},
		{"two words\x1b", "a\nb\x07", `"two words\x1b": no start until it is resumed (ann: a b\a)`},
		{strings.Repeat("long/", 30) + "end", "disk swap", "long/long/…ong/long/long/long/end: no start until it is resumed (ann: disk swap)"},
		{strings.Repeat("long/", 30) + "end", strings.Repeat("note ", 30), "long/…g/long/end: no start until it is resumed (ann: note note note note note n…"},
	} {
		if got := pausedLines(locks(tt.key, tt.note), 80); len(got) != 1 || got[0] != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// TestPausedText: a brief pause may be over by the time at which its effect is looked up.
func TestPausedText(t *testing.T) {
	if got, want := pausedText("nightly", ledger.Pause{}, ledger.Facts{}), "nightly: the pause is over already; no run of it is remembered"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
