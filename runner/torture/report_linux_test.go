package torture

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/boottime"
)

// table is a row a fault: how often it came, how many overlaps began after it
// and before the next fault, and how long it took until the next command led.
func table(mode string, events []event, overlaps []overlap) string {
	var names []string
	for _, e := range events {
		if !slices.Contains(names, e.fault) {
			names = append(names, e.fault)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| mode | fault | times | overlaps | next command after p50 | p99 | max |\n|---|---|---|---|---|---|---|\n")
	for _, name := range names {
		var times []time.Duration
		count, overlapped := 0, 0
		for i, e := range events {
			if e.fault != name {
				continue
			}
			count++
			if e.next > 0 {
				times = append(times, e.next)
			}
			for _, o := range overlaps {
				if o.young.first > e.at && (i+1 == len(events) || o.young.first <= events[i+1].at) {
					overlapped++
				}
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %s | %s | %s |\n", mode, name, count, overlapped,
			quantile(times, 50), quantile(times, 99), quantile(times, 100))
	}
	return b.String()
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
	h := a.history()
	h.sort()
	fmt.Fprintf(&b, "now %v, last led %+v\n", boottime.Now(), h[max(0, len(h)-3):])
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
