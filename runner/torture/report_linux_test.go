package torture

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// outcome is what a fault came to: a line in the file of -results.
type outcome struct {
	Mode, Fault string
	Next        time.Duration // until the next command started; 0 where none had to
	By          string        // the host that this was on
	Bound       time.Duration // what that must not exceed
	Overlaps    int           // that began after it and before the next fault
	Load        float64       // of the machine
	Stall       time.Duration // the longest in which nothing ran meanwhile
}

func (a *arena) outcomes(events []event, overlaps []overlap) []outcome {
	var all []outcome
	for i, e := range events {
		o := outcome{Mode: a.modeName, Fault: e.fault, Next: e.next, By: e.by, Bound: e.bound, Load: e.load, Stall: a.stalls.longest(e.at, e.at+max(e.next, 0))}
		for _, lap := range overlaps {
			if lap.young.first > e.at && (i+1 == len(events) || lap.young.first <= events[i+1].at) {
				o.Overlaps++
			}
		}
		all = append(all, o)
	}
	return all
}

// accumulate adds outcomes to those that earlier runs have left in a file, and
// returns all of them.
func accumulate(path string, outcomes []outcome) ([]outcome, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil { // several may run at once
		return nil, err
	}
	var all []outcome
	for lines := json.NewDecoder(file); ; {
		var o outcome
		err := lines.Decode(&o)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, o)
	}
	for _, o := range outcomes {
		if err := json.NewEncoder(file).Encode(o); err != nil {
			return nil, err
		}
	}
	return append(all, outcomes...), nil
}

// table is a row a fault: how often it came, how many overlaps followed, how long it
// took until the next command led, and how often that was too long.
func table(outcomes []outcome) string {
	type row struct{ mode, fault string }
	rows := map[row][]outcome{}
	loads := make([]float64, 0, len(outcomes))
	for _, o := range outcomes {
		r := row{o.Mode, o.Fault}
		rows[r] = append(rows[r], o)
		loads = append(loads, o.Load)
	}
	var b strings.Builder
	b.WriteString("| mode | fault | times | overlaps | next command after p50 | p99 | max | beyond the bound |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range slices.SortedFunc(maps.Keys(rows), func(x, y row) int {
		return cmp.Or(cmp.Compare(x.mode, y.mode), cmp.Compare(x.fault, y.fault))
	}) {
		var times []time.Duration
		overlapped, late := 0, 0
		for _, o := range rows[r] {
			if o.Next > 0 {
				times = append(times, o.Next)
			}
			if o.Next > o.Bound {
				late++
			}
			overlapped += o.Overlaps
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %s | %s | %s | %d |\n", r.mode, r.fault, len(rows[r]), overlapped,
			quantile(times, 50), quantile(times, 99), quantile(times, 100), late)
	}
	if slices.Sort(loads); len(loads) > 0 {
		fmt.Fprintf(&b, "load %.1f (p50), %.1f (max)\n", loads[(len(loads)-1)/2], loads[len(loads)-1])
	}
	return b.String()
}

// loadNow is the machine's, of the last minute.
func loadNow() float64 {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(data), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

func quantile(times []time.Duration, percent int) string {
	if len(times) == 0 {
		return "-"
	}
	slices.Sort(times)
	return times[(len(times)-1)*percent/100].Round(time.Millisecond).String()
}

func (a *arena) logOf(host string) string { return filepath.Join(a.logs, host+".log") }

// lastSaid are the last lines that the pgleads of a host wrote.
func (a *arena) lastSaid(host string, lines int) string {
	data, err := os.ReadFile(a.logOf(host))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// state is what a reader wants to know when something does not happen: which
// processes live, what they said last, and who has which lock.
func (a *arena) state() string {
	var b strings.Builder
	for _, host := range contenders() {
		a.mu.Lock()
		pid := a.pids[host]
		a.mu.Unlock()
		tree, err := exec.Command("ps", "-o", "pid,ppid,stat,args", "-p", strconv.Itoa(pid), "--ppid", strconv.Itoa(pid)).Output()
		if err != nil {
			tree = []byte(err.Error())
		}
		fmt.Fprintf(&b, "%s: %s\n%s\n", host, bytes.TrimSpace(tree), a.lastSaid(host, 5))
	}
	h := a.history(0)
	h.sort()
	fmt.Fprintf(&b, "now %v, last led %+v\n", uptime(), h[max(0, len(h)-3):])
	rows, err := a.server.Query("postgres", `SELECT concat_ws(' ', l.pid, host(client_addr), usename, locktype, classid::bigint, objid::bigint, mode, granted, state, wait_event, left(query, 200))
		FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE locktype = 'advisory' ORDER BY classid, objid`)
	fmt.Fprintf(&b, "%s (%v)", strings.Join(rows, "\n"), err)
	return b.String()
}

// picture draws who led when, a line a host, with the faults as marks.
func picture(h history, events []event) []byte {
	h.sort()
	if len(h) == 0 {
		return nil
	}
	const width, row, left, top = 1200, 26, 60, 30
	begin, end := h[0].first, h[0].last
	var hosts []string
	for _, l := range h {
		begin, end = min(begin, l.first), max(end, l.last)
		if !slices.Contains(hosts, l.host) {
			hosts = append(hosts, l.host)
		}
	}
	slices.Sort(hosts)
	x := func(at time.Duration) float64 {
		return left + (width-left-20)*float64(at-begin)/float64(max(1, end-begin))
	}
	var b bytes.Buffer
	bottom := top + row*len(hosts)
	height := bottom + 40 + 14*len(events)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="10" y="16">who led when (%v), and what was done to the leader</text>`+"\n", (end - begin).Round(time.Second))
	for i, host := range hosts {
		fmt.Fprintf(&b, `<text x="10" y="%d">%s</text><line x1="%d" x2="%d" y1="%d" y2="%d" stroke="#ddd"/>`+"\n",
			top+row*i+16, host, left, width-20, top+row*(i+1), top+row*(i+1))
	}
	for _, l := range h {
		color := "#2a7"
		if l.excused {
			color = "#bbb"
		}
		i := slices.Index(hosts, l.host)
		fmt.Fprintf(&b, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"><title>token %d</title></rect>`+"\n",
			x(l.first), top+row*i+4, max(0.5, x(l.last)-x(l.first)), row-8, color, l.token)
	}
	for i, e := range events {
		fmt.Fprintf(&b, `<line x1="%.2f" x2="%.2f" y1="%d" y2="%d" stroke="#c33" stroke-dasharray="2 2"/><text x="%.2f" y="%d" fill="#c33">%d</text><text x="%d" y="%d">%d  %s on %s</text>`+"\n",
			x(e.at), x(e.at), top, bottom, x(e.at)+2, bottom+12, i+1, left, bottom+34+14*i, i+1, e.fault, e.host)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func TestHistory(t *testing.T) {
	k := []string{"k"}
	h := history{
		{token: 3, host: "b", locks: k, first: 30, last: 50},
		{token: 1, host: "a", locks: k, first: 0, last: 10},
		{token: 2, host: "a", locks: k, first: 11, last: 31},
	}
	found := h.overlaps()
	if len(found) != 1 || found[0].old.token != 2 || found[0].young.token != 3 || found[0].by != 1 {
		t.Errorf("overlaps %v, want tokens 2 and 3 for 1ns", found)
	}
	if err := h.disorder(); err != nil {
		t.Error(err)
	}
	if err := append(h, life{token: 2, locks: k, first: 60}).disorder(); err == nil {
		t.Error("a token that comes back is not noticed")
	}
	if next, ok := h.next(10, h[0]); !ok || next.token != 2 {
		t.Errorf("next after 10 is %v", next)
	}
	if _, ok := h.next(30, h[0]); ok {
		t.Error("there is none after 30")
	}
}

// TestHistoryOfSeveral: several locks, and one lock in several hands.
func TestHistoryOfSeveral(t *testing.T) {
	for name, tt := range map[string]struct {
		history  history
		overlaps int
		disorder bool
	}{
		"a key in common":             {history{{token: 1, locks: []string{"a", "b"}, last: 9}, {token: 2, locks: []string{"b", "c"}, first: 5, last: 6}}, 1, false},
		"no key in common":            {history{{token: 1, locks: []string{"a", "b"}, last: 9}, {token: 2, locks: []string{"c"}, first: 5, last: 6}}, 0, false},
		"readers":                     {history{{token: 2, locks: []string{"a"}, shared: true, last: 9}, {token: 1, locks: []string{"a"}, shared: true, first: 5, last: 6}}, 0, false},
		"a writer with a reader":      {history{{token: 1, locks: []string{"a"}, shared: true, last: 9}, {token: 2, locks: []string{"a"}, first: 5, last: 6}}, 1, false},
		"behind one that goes on":     {history{{token: 1, locks: []string{"a"}, last: 9}, {token: 2, locks: []string{"b"}, first: 2, last: 3}, {token: 3, locks: []string{"a"}, first: 8, last: 12}}, 1, false},
		"a writer before two readers": {history{{token: 1, locks: []string{"a"}, shared: true}, {token: 3, locks: []string{"a"}, shared: true, first: 1, last: 1}, {token: 2, locks: []string{"a"}, first: 2, last: 2}}, 0, true},
		"a reader before a writer":    {history{{token: 2, locks: []string{"a"}}, {token: 1, locks: []string{"a"}, shared: true, first: 1, last: 1}}, 0, true},
		"one slot after another":      {history{{token: 2, locks: []string{"a#1"}}, {token: 1, locks: []string{"a#2"}, first: 1, last: 1}}, 0, false},
		"one token for two slots":     {history{{token: 1, locks: []string{"a#1"}}, {token: 1, locks: []string{"a#2"}, first: 1, last: 1}}, 0, true},
	} {
		if got := tt.history.overlaps(); len(got) != tt.overlaps {
			t.Errorf("%s: overlaps %v, want %d", name, got, tt.overlaps)
		}
		if err := tt.history.disorder(); (err != nil) != tt.disorder {
			t.Errorf("%s: disorder %v, want any: %v", name, err, tt.disorder)
		}
	}
}

// TestAccumulate: the table is of all runs that have left their outcomes in a file.
func TestAccumulate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results")
	first := []outcome{{Mode: "run", Fault: "a", Next: 2 * time.Second, Bound: time.Second, Overlaps: 1, Load: 1}, {Mode: "run", Fault: "b", Load: 3}}
	if _, err := accumulate(path, first); err != nil {
		t.Fatal(err)
	}
	all, err := accumulate(path, []outcome{{Mode: "run", Fault: "a", Next: time.Second, Bound: time.Second, Load: 2}})
	if err != nil {
		t.Fatal(err)
	}
	got := table(all)
	for _, want := range []string{"| run | a | 2 | 1 | 1s | 1s | 2s | 1 |\n", "| run | b | 1 | 0 | - | - | - | 0 |\n", "load 2.0 (p50), 3.0 (max)\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if err := os.WriteFile(path, []byte("{"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := accumulate(path, nil); err == nil {
		t.Error("a file that is broken off is read")
	}
}
