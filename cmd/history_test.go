package cmd

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
)

// theNight is what the pages show: four runs, one of them under way.
func theNight() pastRuns {
	day := func(date, hour, minute int) time.Time {
		return time.Date(2026, 11, date, hour, minute, 0, 0, time.Local)
	}
	failed, ok := 1, 0
	id := lockkey.SipHash24("nightly")
	run := func(host string, started time.Time, took time.Duration, outcome ledger.Outcome, status *int) ledger.Entry {
		r := ledger.Entry{ID: id, Key: "nightly", Host: host, User: "cron", PID: 4711, Command: "backup.sh", Started: started, Outcome: outcome, Status: status, Token: 281474976740000 + started.Unix()%1000}
		if outcome != ledger.Running {
			r.Ended = started.Add(took)
		}
		return r
	}
	runs := []ledger.Entry{
		run("web2", day(22, 3, 0), 0, ledger.Running, nil),
		run("web1", day(22, 2, 0), 62*time.Second, ledger.Lost, nil),
		run("web1", day(21, 3, 0), 4*time.Minute+11*time.Second, ledger.OK, &ok),
		run("web1", day(20, 3, 0), 400*time.Millisecond, "failed", &failed),
	}
	runs[0].Token, runs[0].Waited = 281474976740399, 10*time.Second
	return pastRuns{history: ledger.History{Runs: runs, Now: day(22, 3, 12)}, key: "nightly", target: "db.example:5432/app", width: 80}
}

func TestHistoryTable(t *testing.T) {
	var out strings.Builder
	if err := writeHistory(&out, theNight()); err != nil {
		t.Fatal(err)
	}
	const want = `STARTED          HOST  TOOK    RESULT
Nov 22 03:00:00  web2  running 12m, usually 4m (token 281474976740399)
Nov 22 02:00:00  web1  ≤1m02s  lost      next start waited 10s
Nov 21 03:00:00  web1  4m11s   ok
Nov 20 03:00:00  web1  0.4s    failed 1
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
	for _, page := range []string{reference, readme} {
		if !strings.Contains(read(t, page), want) {
			t.Errorf("%s shows something else", page)
		}
	}
}

// TestHistoryWidth: the table fits into 80 columns, whatever is in it, and nothing in it controls
// the terminal.
func TestHistoryWidth(t *testing.T) {
	p := theNight()
	killed := 137
	for i := range p.history.Runs {
		p.history.Runs[i].Host = strings.Repeat("host\x1b[31m", 20)
	}
	p.history.Runs[3].Outcome, p.history.Runs[3].Status = "killed\n\x07", &killed
	var out strings.Builder
	if err := writeHistory(&out, p); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 5 || strings.ContainsAny(out.String(), "\x1b\x07") {
		t.Errorf("%q", lines)
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(lines[1], "(token 281474976740399)") || !strings.HasSuffix(lines[2], "next start waited 10s") {
		t.Errorf("it is not the host that gives way: %q", lines)
	}
}

func TestTook(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0.0s": 0, "0.4s": 400 * time.Millisecond, "9.9s": 9999 * time.Millisecond, "10s": 10 * time.Second, "42s": 42 * time.Second,
		"59s": 59999 * time.Millisecond, "1m00s": time.Minute, "1m02s": 62 * time.Second, "59m59s": time.Hour - time.Second, "1h00m": time.Hour,
		"23h59m": 24*time.Hour - time.Second, "2d03h": 51 * time.Hour,
	} {
		if got := took(d); got != want {
			t.Errorf("%v took %s, want %s", d, got, want)
		}
	}
	for want, d := range map[string]time.Duration{
		"0s": -time.Second, "99s": 99 * time.Second, "12m": 12*time.Minute + 59*time.Second, "26h": 26*time.Hour + 12*time.Minute, "3d": 80 * time.Hour,
	} {
		if got := roughly(d); got != want {
			t.Errorf("%v is roughly %s, want %s", d, got, want)
		}
	}
}

func TestVerdictText(t *testing.T) {
	now := time.Date(2026, 11, 22, 5, 12, 0, 0, time.Local)
	success := ledger.Success{Started: time.Date(2026, 11, 21, 3, 0, 0, 0, time.Local), Ended: time.Date(2026, 11, 21, 3, 4, 11, 0, time.Local), Host: "web1"}
	long := success
	long.Ended = long.Ended.Add(5 * time.Hour)
	for _, tt := range []struct {
		verdict     ledger.Health
		state, want string
	}{
		{ledger.Health{Known: true, Success: success, Late: true, Failed: 2}, "LATE", "nightly: LATE, last success Nov 21 03:00 on web1, 26h ago; failed 2 times since"},
		{ledger.Health{Known: true, Success: success, Failed: 1}, "FAILED", "nightly: FAILED, last success Nov 21 03:00 on web1, 26h ago; failed once since"},
		{ledger.Health{Known: true, Success: long}, "ok", "nightly: ok, last success Nov 21 03:00 on web1, ended 21h ago"},
		{ledger.Health{Late: true}, "LATE", "nightly: LATE, no run yet"},
		{ledger.Health{Known: true, Late: true, Failed: 3}, "LATE", "nightly: LATE, no success yet; failed 3 times"},
		{
			ledger.Health{Known: true, Success: success, Running: []ledger.Entry{{Host: "web2", Started: now.Add(-12 * time.Minute)}, {}, {}}, Pause: ledger.Pause{Until: ledger.Endless(), By: "ann", Note: "disk\nswap"}},
			"ok", "nightly: ok, last success Nov 21 03:00 on web1, 26h ago; running on web2 for 12m and 2 more; paused until it is resumed (ann: disk swap)",
		},
	} {
		tt.verdict.Now = now
		if state, got := verdictText("nightly", tt.verdict); got != tt.want || state != tt.state {
			t.Errorf("%s: %s\nwant %s", state, got, tt.want)
		}
	}
	spam := strings.Repeat("spam\n", 100)
	worst := ledger.Health{Known: true, Now: now, Late: true, Failed: 1000, Success: ledger.Success{Started: success.Started, Ended: success.Ended, Host: spam}, Running: []ledger.Entry{{Host: spam, Started: now}, {}}, Pause: ledger.Pause{Until: ledger.Endless(), By: spam, Note: spam}}
	if _, got := verdictText(spam, worst); utf8.RuneCountInString(got) > 300 || strings.Contains(got, "\n") {
		t.Errorf("a pager has no place for %d characters: %s", utf8.RuneCountInString(got), got)
	}
}

func TestMissedTicks(t *testing.T) {
	began := time.Date(2026, 11, 1, 3, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	runs := func(days ...float64) (runs []ledger.Entry) {
		for _, d := range slices.Backward(days) {
			runs = append(runs, ledger.Entry{Started: began.Add(time.Duration(d * float64(day)))})
		}
		return runs
	}
	regular := []float64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	for name, tt := range map[string]struct {
		runs  []ledger.Entry
		every time.Duration
		now   float64
		want  []float64
	}{
		"none":                      {nil, day, 3, nil},
		"all were":                  {runs(regular...), 0, 11.5, nil},
		"a late one may yet come":   {runs(regular...), 0, 12.2, nil},
		"the last is missing":       {runs(regular...), 0, 12.3, []float64{12}},
		"two in the middle":         {runs(0, 1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13), 0, 13, []float64{5, 6}},
		"a little early, and late":  {runs(0, 1.1, 1.95, 3, 4.1, 7, 8, 9, 10, 11.05, 12, 13), 0, 13, []float64{5.1, 6.1}},
		"no rule is to be seen":     {runs(0, 1, 1.1, 5, 5.2, 7, 10, 10.4, 11, 13, 13.1, 20), 0, 21, nil},
		"too few to see one":        {runs(0, 1, 2, 5), 0, 5, nil},
		"few, but it is said":       {runs(0, 1, 2, 5), day, 5, []float64{3, 4}},
		"it was retried":            {runs(0, 0.01, 0.02, 2), day, 2, []float64{1.02}},
		"weeks off are no failures": {runs(0, 1, 2, 3, 4, 5, 6, 7, 8, 30, 31, 32), 0, 32, nil},
	} {
		_, got := missedTicks(tt.runs, began.Add(time.Duration(tt.now*float64(day))), tt.every)
		var want []time.Time
		for _, d := range tt.want {
			want = append(want, began.Add(time.Duration(d*float64(day))))
		}
		if !slices.EqualFunc(got, want, func(a, b time.Time) bool { return a.Sub(b).Abs() < time.Second }) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if _, got := missedTicks(runs(0, 10000), began.Add(10000*day), time.Minute); len(got) != 500 {
		t.Errorf("%d marks", len(got))
	}
}

// element is a part of a page.
type element struct {
	name, text string
	attributes map[string]string
}

// parsePage reads a page as the XML that it nearly is.
func parsePage(t *testing.T, page string) (elements []element) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	var open []int
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return elements
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := element{name: token.Name.Local, attributes: map[string]string{}}
			for _, a := range token.Attr {
				e.attributes[a.Name.Local] = a.Value
			}
			open = append(open, len(elements))
			elements = append(elements, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			for _, i := range open {
				elements[i].text += string(token)
			}
		}
	}
}

// TestPage: the page has every run twice in pictures and once in its table, and
// nothing that others wrote is more than text in it.
func TestPage(t *testing.T) {
	p := theNight()
	const evil = `</title><script>alert("x")</script>'"&<img src=http://evil.example/>` + "\x1b[31m\u202e"
	p.key = "nightly" + evil
	for i := range 10 { // one a day before, but for two
		if i != 4 && i != 5 {
			r := p.history.Runs[2]
			r.Started, r.Ended, r.Token = r.Started.AddDate(0, 0, -i-2), r.Ended.AddDate(0, 0, -i-2), r.Token-int64(i)-1
			p.history.Runs = append(p.history.Runs, r)
		}
	}
	p.every = 24 * time.Hour
	p.history.Runs[2].Host, p.history.Runs[2].Command, p.history.Runs[2].User = "web3"+evil, evil, evil
	var out strings.Builder
	if err := writeHistoryPage(&out, p); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	if strings.ContainsAny(page, "\x1b\u202e") {
		t.Error("the page has control characters")
	}
	counts := map[string]int{}
	var hosts, titles []string
	ids := map[string]bool{}
	for _, e := range parsePage(t, page) {
		counts[e.name]++
		for name, value := range e.attributes {
			if strings.HasPrefix(name, "on") || slices.Contains([]string{"src", "srcset", "href", "action", "data", "poster", "style"}, name) && !strings.HasPrefix(value, "#") {
				t.Errorf("<%s %s=%q>", e.name, name, value)
			}
		}
		if m := regexp.MustCompile(`(?i)url\([^#]|@import|//`).FindString(e.text); e.name == "style" && m != "" {
			t.Errorf("the style has %q", m)
		}
		class := strings.Fields(e.attributes["class"])
		switch {
		case e.name == "rect" && slices.Contains(class, "run") && e.attributes["height"] != "12":
			counts["bar"]++
			counts["bar "+class[1]]++
		case e.name == "rect" && slices.Contains(class, "delay") && e.attributes["height"] != "12":
			counts["delay"]++
		case e.name == "circle" && e.attributes["r"] == "5" && e.attributes["cx"] != "7":
			counts["missed"]++
		case e.name == "text" && slices.Contains(class, "host"):
			hosts = append(hosts, e.text)
		case e.name == "title":
			titles = append(titles, e.text)
		case e.name == "tr" && e.attributes["id"] != "":
			ids[e.attributes["id"]] = true
		case e.name == "h1" && !strings.Contains(e.text, `<script>alert("x")</script>'"&<img`):
			t.Errorf("the key is %q", e.text)
		}
	}
	runs := len(p.history.Runs)
	for what, want := range map[string]int{
		"bar": 2 * runs, "bar running": 2, "bar lost": 2, "bar failed": 2, "delay": 1, "missed": 2, "script": 0, "img": 0, "link": 0, "svg": 8, "table": 1,
	} {
		if counts[what] != want {
			t.Errorf("%d of %s, want %d", counts[what], what, want)
		}
	}
	if len(ids) != runs {
		t.Errorf("%d rows of %d runs", len(ids), runs)
	}
	if len(hosts) != 4 || hosts[0] != "web1" || hosts[1] != "web2" || !strings.HasPrefix(hosts[2], "web3</title>") || !strings.HasPrefix(hosts[3], "due every 24h") {
		t.Errorf("lanes of %q", hosts)
	}
	for _, want := range []string{"running", "token 281474976740399", "exit status 1", "next start waited 10s", "due about ", "lock-delay of 10s"} {
		if !slices.ContainsFunc(titles, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("nothing shows %q under the pointer", want)
		}
	}
	for _, want := range []string{"Running on web2 for 12m.", "Last success Nov 21 03:00 on web3", "Usually takes 4m11s."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

func TestPageOfNothing(t *testing.T) {
	var out strings.Builder
	if err := writeHistoryPage(&out, pastRuns{key: "nightly", target: "db"}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "No run is remembered.") || strings.Contains(out.String(), "<table>") {
		t.Error(out.String())
	}
}

// TestPageScale: whatever the times are, what is drawn is in the picture.
func TestPageScale(t *testing.T) {
	now := time.Date(2026, 11, 22, 5, 0, 0, 0, time.Local)
	for _, gap := range []time.Duration{0, time.Millisecond, time.Second, time.Minute, time.Hour, 24 * time.Hour, 100 * 24 * time.Hour} {
		var runs []ledger.Entry
		for i := range 150 {
			started := now.Add(-gap * time.Duration(i+1))
			runs = append(runs, ledger.Entry{Host: fmt.Sprint("web", i%3), Token: int64(i), Started: started, Ended: started.Add(gap / 2), Waited: gap, Outcome: "ok"})
		}
		var out strings.Builder
		if err := writeHistoryPage(&out, pastRuns{history: ledger.History{Runs: runs, Now: now}, key: "k"}); err != nil {
			t.Fatal(err)
		}
		drawn, rows, marks := 0, 0, 0
		for _, e := range parsePage(t, out.String()) {
			class, at, wide := e.attributes["class"], e.attributes["x"], e.attributes["width"]
			switch {
			case e.name == "tr" && e.attributes["id"] != "":
				rows++
			case e.name == "line" && class == "axis":
				marks++
			case e.name == "rect" && strings.HasSuffix(at, "%"):
				var x, width float64
				if _, err := fmt.Sscanf(at+" "+wide, "%f%% %f%%", &x, &width); err != nil || x < 0 || x+width > 100.05 {
					t.Errorf("%v apart: from %s, wide %s: %v", gap, at, wide, err)
				}
				if strings.HasPrefix(class, "run ") {
					drawn++
				}
			}
		}
		if drawn != 2*mostDrawn || rows != 150 || marks > 10 || !strings.Contains(out.String(), "the newest 100 of 150 runs") {
			t.Errorf("%v apart: %d drawn, %d rows, %d marks", gap, drawn, rows, marks)
		}
	}
}

func TestInSheet(t *testing.T) {
	for in, want := range map[string]string{"": "", "web1": "web1", "=HYPERLINK(1)": "'=HYPERLINK(1)", "+1": "'+1", "-1": "'-1", "@x": "'@x"} {
		if got := inSheet(in); got != want {
			t.Errorf("%q is %q in a sheet", in, got)
		}
	}
}

// TestHistoryCSV: others' texts are values of a line each, whatever they contain; JSON has them as
// they are.
func TestHistoryCSV(t *testing.T) {
	for key, want := range map[string]string{"two\nlines\tof": "two lines of", "\x1b[2J": `\x1b[2J`, `a,"b"`: `"a,""b"""`, strings.Repeat("k", 1001): strings.Repeat("k", 1000) + "…"} {
		past := pastRuns{history: ledger.History{Runs: []ledger.Entry{{Key: key, Outcome: ledger.OK}}}}
		var csv, asJSON strings.Builder
		if err := errors.Join(writeHistoryCSV(&csv, past), writeHistoryJSON(&asJSON, past)); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(csv.String(), "\n")
		if len(lines) != 3 || lines[2] != "" || !strings.Contains(lines[1], ",0,"+want+",0,") {
			t.Errorf("%q: %q", key, csv.String())
		}
		var views []runView
		if err := json.Unmarshal([]byte(asJSON.String()), &views); err != nil || len(views) != 1 || views[0].Key != key {
			t.Errorf("%q in JSON: %s, %v", key, asJSON.String(), err)
		}
	}
}
