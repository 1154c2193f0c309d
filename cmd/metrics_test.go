package cmd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
)

// TestLockMetrics: the page keeps promtool's rules, and has every key.
func TestLockMetrics(t *testing.T) {
	keys := []string{`C:\jobs "x"`, "nightly", "two\nlines", "é/日本"}
	now := time.Now()
	var views []inspect.View
	for i, key := range keys {
		v := inspect.View{
			Database: "app", ID: lockkey.SipHash24(key), Granted: true, Backend: uint32(i + 1), Described: true, Now: now,
			Description: describe.Description{Keys: []string{key}, Scheme: "siphash24", Host: "web1", PID: 1, Since: now.Add(-time.Minute)},
		}
		views = append(views, v)
		v.Granted, v.Backend = false, uint32(i+100)
		views = append(views, v)
	}
	text := lockMetrics(inspect.Locks(views))
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
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

// TestRememberedMetrics: each key has one series, however many slots it has, keys that look the same
// have one together, and the page keeps promtool's rules.
func TestRememberedMetrics(t *testing.T) {
	now := time.Unix(1795350000, 0)
	failed := 3
	fact := func(key string, outcome ledger.Outcome, status *int) ledger.Fact {
		f := ledger.Fact{Last: ledger.Entry{Key: key, Outcome: outcome, Status: status, Started: now.Add(-time.Hour), Ended: now.Add(-time.Hour + 90*time.Second)}}
		if outcome == ledger.Running {
			f.Last.Ended, f.Before = time.Time{}, ledger.Entry{Outcome: ledger.Lost, Started: now.Add(-2 * time.Hour), Ended: now.Add(-time.Hour)}
		}
		return f
	}
	facts := ledger.Facts{Now: now, List: []ledger.Fact{fact("render", ledger.Running, nil), fact("render", ledger.Running, nil), fact("two\n\"lines\"", "failed", &failed), fact("nightly", ledger.OK, new(int)), {Last: ledger.Entry{Key: "paused"}}, {Last: ledger.Entry{Key: "bell\x01"}}, fact(`bell\x01`, "failed", &failed), {Last: ledger.Entry{Key: "a\tb"}}, {Last: ledger.Entry{Key: "a b"}}}}
	facts.List[0].Success = ledger.Success{Ended: now.Add(-5 * time.Hour)}
	facts.List[1].Success = ledger.Success{Ended: now.Add(-4 * time.Hour)}
	facts.List[3].Pause, facts.List[4].Pause = ledger.Pause{Until: now.Add(time.Hour)}, ledger.Pause{Until: ledger.Endless()}
	text := rememberedMetrics(facts)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v in:\n%s", problems, err, text)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			if len(m.GetLabel()) != 1 || m.GetLabel()[0].GetName() != "key" {
				t.Errorf("%s has the labels %v", name, m.GetLabel())
			}
			got[name] += fmt.Sprintf("%s %v\n", m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
		}
	}
	for name, want := range map[string]string{
		"pglead_last_success_timestamp_seconds": "render 1.7953356e+09\n",
		"pglead_last_duration_seconds":          "nightly 90\nrender 3600\ntwo\n\"lines\" 90\n",
		"pglead_last_status":                    "nightly 0\nrender 76\ntwo\n\"lines\" 3\n",
		"pglead_running":                        "a\\tb 0\na b 0\nbell\\x01 0\nnightly 0\npaused 0\nrender 2\ntwo\n\"lines\" 0\n",
		"pglead_paused_until_timestamp_seconds": "a\\tb 0\na b 0\nbell\\x01 0\nnightly 1.7953536e+09\npaused +Inf\nrender 0\ntwo\n\"lines\" 0\n",
	} {
		if got[name] != want {
			t.Errorf("%s:\n%swant\n%s", name, got[name], want)
		}
	}
}
