package cmd

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglead/pglead/runner/ledger"
)

// TestTimesAreCutOff: times are cut, so that no instant is shown as a later one.
func TestTimesAreCutOff(t *testing.T) {
	late := time.Date(2026, 11, 22, 12, 0, 59, 999_999_999, time.Local)
	for want, got := range map[string]string{
		"Nov 22 12:00:59": whenExactly(late, late), "Nov 22 12:00": when(late, late), "Nov 22 2026": whenExactly(late, late.AddDate(1, 0, 0)),
		"59s": brief(59999 * time.Millisecond), "1d23h": brief(48*time.Hour - 1), "12:00:59": ledger.Clock(late, late),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestKeysWidth: the list of keys fits into 80 columns, whatever is in it.
func TestKeysWidth(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.Local)
	status := 255
	long := strings.Repeat("long/\x1b[31m", 30)
	facts := ledger.Facts{Now: now, List: []ledger.Fact{
		{Last: ledger.Entry{Key: long, Host: long, Started: now.Add(-time.Hour), Ended: now, Outcome: ledger.Failed, Status: &status}, Success: ledger.Success{Ended: now.Add(-time.Minute)}, Pause: ledger.Pause{Until: ledger.Endless(), By: long}},
		{Last: ledger.Entry{Key: "slotted", Host: "web1", Started: now.Add(-time.Hour), Outcome: ledger.Running}},
		{Last: ledger.Entry{Key: "slotted", Host: "web2", Started: now.Add(-time.Minute), Outcome: ledger.Running}},
	}}
	var out strings.Builder
	if err := writeKeys(&out, pastKeys{keys: pastKeysOf(facts), facts: facts, width: 80}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 5 || strings.Contains(out.String(), "\x1b") || !strings.HasSuffix(lines[1], "1h00m  failed 255  60s ago") || !strings.HasSuffix(lines[2], "60s…   2 running   never") {
		t.Errorf("%s", out.String())
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
