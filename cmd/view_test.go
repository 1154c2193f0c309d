package cmd

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// TestPrometheus: promtool's own rules are kept, and every key arrives.
func TestPrometheus(t *testing.T) {
	keys := []string{`C:\jobs "x"`, "nightly", "two\nlines", "é/日本"}
	now := time.Now()
	var views []session.View
	for i, key := range keys {
		v := session.View{
			Database: "app", ID: lockkey.SipHash24(key), Granted: true, Backend: uint32(i + 1), Described: true, Now: now,
			Description: session.Description{Keys: []string{key}, Scheme: "siphash24", Host: "web1", PID: 1, Since: now.Add(-time.Minute)},
		}
		views = append(views, v)
		v.Granted, v.Backend = false, uint32(i+100)
		views = append(views, v)
	}
	var text strings.Builder
	if err := writePrometheus(&text, locksOf(views)); err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(strings.NewReader(text.String())).Lint()
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text.String())
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"pglead_lock_holders": 1, "pglead_lock_waiters": 1, "pglead_lock_held_seconds": 60} {
		metrics := families[name].GetMetric()
		if len(metrics) != len(keys) {
			t.Errorf("%s has %d samples of %d keys", name, len(metrics), len(keys))
			continue
		}
		for i, m := range metrics {
			for _, label := range m.GetLabel() {
				if label.GetName() == "key" && label.GetValue() != keys[i] {
					t.Errorf("%s: key %q, want %q", name, label.GetValue(), keys[i])
				}
			}
			if got := m.GetGauge().GetValue(); got != want {
				t.Errorf("%s of %q is %v, want %v", name, keys[i], got, want)
			}
		}
	}
}

// TestTableWidth: a table fits into 80 columns, whatever is in it.
func TestTableWidth(t *testing.T) {
	now := time.Now()
	long := strings.Repeat("long/", 30)
	v := session.View{
		Database: "app", ID: lockkey.SipHash24(long), Granted: true, Described: true, Now: now, Backend: 4194303,
		Description: session.Description{
			Keys: []string{long}, Host: strings.Repeat("host", 20), PID: 4194303, Command: long, Since: now.Add(-400 * 24 * time.Hour), Token: 1<<48 + 1<<40,
		},
	}
	var text strings.Builder
	if err := (table{all: true, width: 80}).write(&text, "db:5432/app", locksOf([]session.View{v})); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
