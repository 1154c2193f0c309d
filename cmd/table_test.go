package cmd

import (
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
