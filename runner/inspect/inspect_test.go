package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/visible"
)

// FuzzViews: whatever a server says of its locks, the result is a view that can be shown, or an
// error.
func FuzzViews(f *testing.F) {
	f.Add("1", "2", "3", "ShareLock", "2026-11-26 10:40:34.5+00", "role", "pglead:k@h", "/*pglead slots='1000',key='k',since='9999-12-31T23:59:59Z',lease='1ns'*/",
		"2026-11-26 16:10:35.5+05:30", "0001-01-01 00:00:00-00:00:01")
	f.Add("-1", "99999999999", "x", "", "infinity", "\x1b[2J", "@", "/*pglead lease='1ns'", "294276-12-31 00:00:00+00", "4713-01-01 00:00:00+00 BC")
	f.Fuzz(func(t *testing.T, class, obj, pid, mode, waiting, role, application, query, now, answered string) {
		row := []string{"db", class, obj, "1", mode, "t", pid, waiting, role, "", application, query, "f", now, "idle", answered, "ISO, MDY"}
		views, err := parseViews([][]string{row, row[:16]}, Sought{})
		if err == nil {
			t.Errorf("a row without its last column is %+v", views)
		}
		views, err = parseViews([][]string{row, row}, Sought{})
		if err != nil {
			return
		}
		for _, v := range views {
			text := v.String()
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !visible.Rune(r) }) || utf8.RuneCountInString(text) > 1000+10 {
				t.Errorf("%+v is shown as %q", v, text)
			}
			if v.HeldFor() < 0 || v.SilentFor() < 0 {
				t.Errorf("held for %v, silent for %v", v.HeldFor(), v.SilentFor())
			}
			v.Key()
		}
	})
}

// TestNamingIsBounded: there is a limit to what is hashed, however many sessions say that their
// keys have a thousand slots.
func TestNamingIsBounded(t *testing.T) {
	n := newNaming(nil)
	view := func(key string) View {
		id, err := lockkey.Schemes()[0].Slot(key, describe.MostSlots)
		if err != nil {
			t.Fatal(err)
		}
		return View{ID: id, Described: true, Description: describe.Description{Keys: []string{key}, Slots: describe.MostSlots}}
	}
	if key, slot, known := n.of(view("first")); key != "first" || slot != describe.MostSlots || !known {
		t.Errorf("slot %d of %q, %v", slot, key, known)
	}
	const sessions = 2000
	unknown := 0
	for i := range sessions {
		if _, _, known := n.of(view(fmt.Sprintf("%d%s", i, strings.Repeat("x", 1000)))); !known {
			unknown++
		}
	}
	hashes := 0
	for _, locks := range n.meant {
		hashes += len(locks)
	}
	if unknown == 0 || unknown == sessions || hashes > mostHashed/1000 {
		t.Errorf("%d of %d are unknown, after %d hashes", unknown, sessions, hashes)
	}
	// What another session has said before costs nothing.
	if _, _, known := n.of(view("first")); !known {
		t.Error("what was known is forgotten")
	}
}

// TestHolderOfAnotherKey: what is said of a holder that does not name the key.
func TestHolderOfAnotherKey(t *testing.T) {
	for application, want := range map[string]string{
		"pglead:import/{}@web1":   `, for an item of "import/{}"`,
		"pglead:import/3@web1":    `, for another key of the same number ("import/3")`,
		"pglead:#17 import/3@web": `, for another key of the same number ("import/3")`,
	} {
		v := View{
			ID: lockkey.SipHash24("import/4"), Described: true, Granted: true, Backend: 1, Application: application,
			Description: describe.Description{Keys: []string{"import/3"}, Host: "web1", Command: "job", PID: 7, User: "cron"},
		}
		if got := v.String(); got != "web1 (job, process 7 of cron)"+want {
			t.Errorf("%s: %s", application, got)
		}
	}
}

// TestCutDescription: of what the server has cut off nothing is said.
func TestCutDescription(t *testing.T) {
	v := View{Described: true, Description: describe.Description{Host: "web1", PID: 7}}
	if got, want := v.String(), "web1 (process 7)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSameTenure: if more than a backend's number is known, the same number alone does not make it
// the same tenure.
func TestSameTenure(t *testing.T) {
	view := func(backend uint32, pid int, token int64, described bool) View {
		return View{Backend: backend, Described: described, Description: describe.Description{PID: pid, Token: token, Host: "a"}}
	}
	former := view(7, 100, 5, true)
	for _, test := range []struct {
		now  View
		want bool
	}{
		{former, true},
		{view(8, 100, 5, true), false},
		{view(7, 100, 0, true), true}, // it draws its token
		{view(7, 100, 6, true), false},
		{view(7, 101, 0, true), false},
		{view(7, 0, 0, false), true}, // this role sees no more
	} {
		if got := test.now.SameTenure(former); got != test.want {
			t.Errorf("%+v: %t", test.now, got)
		}
	}
}

// TestStartsIn: what is said of a lock-delay is that of the lock's own holder, and is never over
// before the holder says so, whatever its clock is.
func TestStartsIn(t *testing.T) {
	now := time.Unix(1<<30, 0)
	view := func(key, application string, held time.Duration) View {
		return View{
			ID: lockkey.SipHash24(key), Described: true, Granted: true, Backend: 1, Application: application, Now: now,
			Description: describe.Description{Keys: []string{"import/3"}, Host: "web1", PID: 7, Delay: time.Hour, Since: now.Add(-held)},
		}
	}
	const run, list = "pglead:import/3@web1", "pglead:import/{}@web1"
	started, waiter := view("import/3", run, time.Minute), view("import/3", run, time.Minute)
	started.Delay, waiter.Granted = 0, false
	several := view("import/3", list, time.Minute)
	several.Keys = []string{"import/3", "import/4"}
	for name, tt := range map[string]struct {
		View
		left    time.Duration
		delayed bool
	}{
		"a run's":               {view("import/3", run, time.Minute), 59 * time.Minute, true},
		"a clock ahead":         {view("import/3", run, -time.Minute), time.Hour, true},
		"a clock behind":        {view("import/3", run, 2*time.Hour), 0, true},
		"keys that are cut off": {view("other", run, time.Minute), 59 * time.Minute, true},
		"an item's":             {view("import/3", list, time.Minute), 59 * time.Minute, true},
		"one of several items":  {several, 0, false},
		"it has started":        {started, 0, false},
		"a waiter's":            {waiter, 0, false},
	} {
		left, delayed := tt.StartsIn()
		json, err := tt.MarshalJSON()
		if left != tt.left || delayed != tt.delayed || err != nil ||
			strings.Contains(tt.String(), "starts in") != tt.delayed || strings.Contains(string(json), `"starts_in_seconds":`) != tt.delayed {
			t.Errorf("%s: in %v, %t; %s; %s, %v", name, left, delayed, tt, json, err)
		}
	}
}
