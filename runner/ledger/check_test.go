package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 22, 5, 12, 0, 0, time.UTC)
	ago := func(d time.Duration) Success {
		return Success{Started: now.Add(-d - time.Hour), Ended: now.Add(-d), Host: "web1"}
	}
	running, lost := Entry{Started: now.Add(-time.Hour), Outcome: Running}, Entry{Started: now.Add(-2 * time.Hour), Outcome: Lost}
	closed := Entry{Started: now.Add(-2 * time.Hour), Ended: now.Add(-time.Hour), Outcome: Lost}
	for name, tt := range map[string]struct {
		facts           []Fact
		known, late     bool
		failed, running int
		success         time.Duration // the time since it ended
		paused          time.Duration // the rest of the pause
	}{
		"nothing is known":                      {late: true},
		"it was only paused":                    {facts: []Fact{{Pause: Pause{Until: now.Add(time.Hour)}}}, late: true, paused: time.Hour},
		"in time, by the end and not the start": {facts: []Fact{{Last: closed, Success: ago(25 * time.Hour)}}, known: true, success: 25 * time.Hour},
		"late by a second":                      {facts: []Fact{{Last: closed, Success: ago(25*time.Hour + time.Second)}}, known: true, late: true, success: 25*time.Hour + time.Second},
		"running, and never a success":          {facts: []Fact{{Last: running}}, known: true, late: true, running: 1},
		"running, and in time":                  {facts: []Fact{{Last: running, Success: ago(time.Hour)}}, known: true, running: 1, success: time.Hour},
		"lost, and nobody has started since":    {facts: []Fact{{Last: lost, Success: ago(time.Hour)}}, known: true, failed: 1, success: time.Hour},
		"lost, which the history has counted":   {facts: []Fact{{Last: closed, Success: ago(time.Hour)}}, known: true, success: time.Hour},
		"two slots, of which one is fresh": {
			facts: []Fact{{Last: running, Success: ago(100 * time.Hour)}, {Last: running, Success: ago(2 * time.Hour)}, {Last: lost}},
			known: true, failed: 1, running: 2, success: 2 * time.Hour,
		},
		"a reader or a slot was lost, and another one has succeeded since": {
			facts: []Fact{{Last: closed, Success: ago(30 * time.Minute)}, {Last: lost, Success: ago(100 * time.Hour)}},
			known: true, success: 30 * time.Minute,
		},
		"lost after a success that ended later": {
			facts: []Fact{{Last: lost}, {Last: closed, Success: ago(90 * time.Minute)}}, known: true, failed: 1, success: 90 * time.Minute,
		},
		"of two pauses the longer counts": {
			facts: []Fact{{Last: closed, Success: ago(0), Pause: Pause{Until: now.Add(time.Hour)}}, {Pause: Pause{Until: Endless()}}},
			known: true, paused: Endless().Sub(now),
		},
	} {
		v := judge(Facts{List: tt.facts, Now: now}, 25*time.Hour)
		if v.Known != tt.known || v.Late != tt.late || v.Failed != tt.failed || len(v.Running) != tt.running || v.Fine() != (!tt.late && tt.failed == 0) {
			t.Errorf("%s: %+v", name, v)
		}
		if !v.Success.Ended.IsZero() && v.Ago() != tt.success {
			t.Errorf("%s: the success ended %v ago, want %v", name, v.Ago(), tt.success)
		}
		if v.Pause.Paused() != (tt.paused > 0) || tt.paused > 0 && v.Pause.Until.Sub(now) != tt.paused {
			t.Errorf("%s: paused until %v", name, v.Pause.Until)
		}
	}
}

func TestUsualLength(t *testing.T) {
	began := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	run := func(outcome Outcome, took time.Duration) Entry {
		return Entry{Started: began, Ended: began.Add(took), Outcome: outcome}
	}
	for _, tt := range []struct {
		runs []Entry
		want time.Duration
	}{
		{nil, 0},
		{[]Entry{run(Failed, time.Hour), {Started: began, Outcome: Running}}, 0},
		{[]Entry{run(OK, 3*time.Minute)}, 3 * time.Minute},
		{[]Entry{run(OK, 3*time.Minute), run(Lost, 0), run(OK, 5*time.Minute)}, 4 * time.Minute},
		{[]Entry{run(OK, time.Hour), run(OK, 3*time.Minute), run(OK, 5*time.Minute)}, 5 * time.Minute},
	} {
		if got := (History{Runs: tt.runs}).MedianDuration(); got != tt.want {
			t.Errorf("%v: %v", tt.runs, got)
		}
	}
	many := History{}
	for range 20 {
		many.Runs = append(many.Runs, run(OK, time.Minute))
	}
	for range 100 {
		many.Runs = append(many.Runs, run(OK, time.Hour))
	}
	if got := many.MedianDuration(); got != time.Minute {
		t.Errorf("what it took long ago counts: %v", got)
	}
}

func TestPauseString(t *testing.T) {
	today := time.Now().Local()
	noon := time.Date(today.Year(), today.Month(), today.Day(), 12, 0, 0, 0, time.Local)
	for want, p := range map[string]Pause{
		"until it is resumed":                                   {Until: Endless()},
		"until it is resumed (ann)":                             {Until: Endless(), By: "ann"},
		"until it is resumed (ann: disk swap)":                  {Until: Endless(), By: "ann", Note: "disk swap"},
		"until it is resumed (disk swap)":                       {Until: Endless(), Note: "disk swap"},
		"until " + noon.AddDate(0, 0, 3).Format("Jan _2 15:04"): {Until: noon.AddDate(0, 0, 3)},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestClock(t *testing.T) {
	now := time.Date(2026, 11, 22, 13, 0, 0, 0, time.Local)
	for want, at := range map[string]time.Time{
		"15:04":        time.Date(2026, 11, 22, 15, 4, 0, 0, time.Local),
		"13:05:07":     time.Date(2026, 11, 22, 13, 5, 7, 0, time.Local),
		"Nov 23 03:00": time.Date(2026, 11, 23, 3, 0, 0, 0, time.Local),
		"Nov 21 03:00": time.Date(2026, 11, 21, 3, 0, 0, 0, time.Local),
		"Nov 22 2027":  time.Date(2027, 11, 22, 13, 0, 0, 0, time.Local),
	} {
		if got := Clock(at, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestEndedMeanwhileIsNotLost: a run that ends after the tables were read and before the locks were
// is not taken for lost.
func TestEndedMeanwhileIsNotLost(t *testing.T) {
	const started, now = "1795350000000000", "1795350060000000"
	open := []string{"7", "1", "nightly", "7", "5", "web1", "cron", "1", "job", "cron", started, "", "", "", "", "f", now}
	ended := []string{"7", "1", "nightly", "7", "5", "web1", "cron", "1", "job", "cron", started, now, "ok", "0", "", "", now}
	past := Past{Key: "nightly", IDs: []lockkey.ID{{Number: 7}}, Most: 10}
	asked := 0
	h, err := ReadHistory(t.Context(), answering(func() session.Rows {
		asked++
		return []session.Rows{{open}, {ended}}[asked-1]
	}), past)
	if err != nil || asked != 2 || len(h.Runs) != 1 || h.Runs[0].Outcome != OK || h.Runs[0].Took() != time.Minute {
		t.Errorf("after %d looks %+v, %v", asked, h, err)
	}
	h, err = ReadHistory(t.Context(), answering(func() session.Rows { return session.Rows{open} }), past)
	if err != nil || len(h.Runs) != 1 || h.Runs[0].Outcome != Lost || !h.Runs[0].Ended.IsZero() {
		t.Errorf("%+v, %v", h, err)
	}
	for _, row := range [][]string{{}, {"7"}, open[:12], append([]string{"seven"}, open[1:]...)} {
		if _, err := ReadHistory(t.Context(), answering(func() session.Rows { return session.Rows{row} }), past); err == nil {
			t.Errorf("%q is read", row)
		}
	}
}

// answering answers any question.
type answering func() session.Rows

func (a answering) Query(context.Context, ...string) (session.Rows, error) { return a(), nil }
