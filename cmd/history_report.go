package cmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/visible"
)

const (
	// mostDrawn is how many runs fit into a picture of the width of a phone.
	mostDrawn = 100
	// mostReported is how many runs a page has in its table.
	mostReported = 1000
)

// report is what the page of a history shows. In it, texts that others wrote have no invisible
// characters; page turns them into HTML.
type report struct {
	Key, Target, Made, Zone string
	Summary                 string
	Legend                  []legend
	Drawn, All              int
	Lanes                   []lane
	Delayed                 bool // some run waited
	Height, AxisY, LabelY   int  // of the picture of lanes, in pixels
	Missed                  []mark
	MissedY                 int
	Every                   string
	Axis                    []mark
	Columns                 []bar
	Usually, Longest        string
	Cut                     bool // the longest columns are higher than the picture
	UsuallyY                string
	Rows                    []reportRow
}

type legend struct {
	Class string
	Count int
}

// lane is one host's row in the picture.
type lane struct {
	Host         string
	TextY, BarY  int
	Bars, Delays []bar
}

// bar is a run in a picture. Lengths with a % are fractions of the picture's width.
type bar struct {
	Class, X, Width, Y, Height, Title, Row string
	Cut                                    bool
}

// mark is an instant in a picture.
type mark struct {
	X, Text, Title string
	Minor          bool // left out if there is little room
}

type reportRow struct {
	ID, Class                              string
	Started, Seconds, Host, Domain         string // the second and the fourth are hidden on a phone
	Took, Result, Remark                   string
	User, Process, Command, Token, Instant string
}

const (
	laneHeight = 46
	barHeight  = 20
	leastWidth = 0.02 // in percent: without a width a bar is not drawn at all
	columnsTop = 96   // the height of the longest column, in pixels
)

func newReport(p pastRuns) report {
	runs := p.history.Runs
	drawn := runs[:min(len(runs), mostDrawn)]
	now := p.history.Now
	if now.IsZero() {
		now = time.Now()
	}
	zone, _ := now.Local().Zone()
	r := report{
		Key: visible.Text(p.key), Target: visible.Text(p.target), Made: now.Local().Format("Mon, 2 Jan 2006 15:04"), Zone: zone,
		Drawn: len(drawn), All: len(runs),
	}
	r.Summary = p.summary(now)
	short := shortNames(runs)
	for i := range runs {
		row := p.row(i)
		if short {
			name, _, _ := strings.Cut(row.Host, ".")
			row.Host, row.Domain = name, row.Host[len(name):]
		}
		r.Rows = append(r.Rows, row)
	}
	if len(runs) == 0 {
		return r
	}
	for _, class := range outcomes() {
		n := 0
		for _, run := range runs {
			if outcomeClass(run) == string(class) {
				n++
			}
		}
		if n > 0 {
			r.Legend = append(r.Legend, legend{string(class), n})
		}
	}
	scale := newScale(drawn, now)
	r.draw(p, drawn, scale)
	r.drawColumns(p, drawn)
	return r
}

// shortNames says whether the hosts' names differ without their domains.
func shortNames(runs []ledger.Entry) bool {
	of := map[string]string{}
	for _, run := range runs {
		name, _, _ := strings.Cut(run.Host, ".")
		if other, known := of[name]; name == "" || strings.Trim(name, "0123456789") == "" || known && other != run.Host {
			return false
		}
		of[name] = run.Host
	}
	return true
}

// outcomes are the outcomes that the page knows, in the order of its legend.
func outcomes() []ledger.Outcome {
	return []ledger.Outcome{ledger.OK, ledger.Failed, ledger.Timeout, ledger.Lost, ledger.Killed, ledger.Stopped, ledger.Running}
}

// outcomeClass is an outcome that the page knows. Others look like failures.
func outcomeClass(r ledger.Entry) string {
	if slices.Contains(outcomes(), r.Outcome) {
		return string(r.Outcome)
	}
	return string(ledger.Failed)
}

// summary answers a reader's first questions.
func (p pastRuns) summary(now time.Time) string {
	if len(p.history.Runs) == 0 {
		return "No run is remembered."
	}
	var parts []string
	for _, r := range p.history.Runs {
		if r.Outcome == ledger.Running {
			parts = append(parts, fmt.Sprintf("Running on %s for %s.", visible.Text(r.Host), roughly(now.Sub(r.Started))))
			break
		}
	}
	last := "No success among these runs."
	for _, r := range p.history.Runs {
		if r.Outcome == ledger.OK {
			last = fmt.Sprintf("Last success %s on %s, ended %s ago.", when(r.Started, now), visible.Text(r.Host), roughly(now.Sub(r.Ended)))
			break
		}
	}
	parts = append(parts, last)
	if usually := p.history.Usually(); usually > 0 {
		parts = append(parts, "Usually takes "+took(usually)+".")
	}
	return strings.Join(parts, " ")
}

func (p pastRuns) row(i int) reportRow {
	run := p.history.Runs[i]
	result, remark := p.result(i)
	row := reportRow{
		ID: rowOf(run), Class: outcomeClass(run),
		Started: when(run.Started, p.history.Now), Instant: run.Started.Local().Format("2006-01-02 15:04:05 -07:00"), Host: visible.Text(run.Host),
		Result: visible.Text(result), Remark: remark,
		User: visible.Text(run.User), Process: strconv.Itoa(run.PID), Command: visible.Text(run.Command),
	}
	if !run.Missing() { // such a run has no token
		row.Token = strconv.FormatInt(run.Token, 10)
	}
	if exactly := whenExactly(run.Started, p.history.Now); strings.HasPrefix(exactly, row.Started) {
		row.Seconds = exactly[len(row.Started):]
	}
	switch {
	case run.Outcome == ledger.Running:
		row.Took = roughly(p.history.Now.Sub(run.Started)) + "…"
	case !run.Ended.IsZero():
		row.Took = took(run.Took())
	}
	return row
}

// rowOf is the name of a run's row.
func rowOf(r ledger.Entry) string {
	if r.Missing() {
		return "m" + strconv.FormatInt(r.Started.UnixMicro(), 10)
	}
	return "t" + strconv.FormatInt(r.Token, 10)
}

// title is the text about a run that a reader sees when pointing at it.
func (p pastRuns) title(i int) string {
	row := p.row(i)
	text := fmt.Sprintf("%s on %s\n%s", row.Instant, row.Host, row.Result)
	if row.Took != "" {
		text += ", " + row.Took
	}
	if status := p.history.Runs[i].Status; status != nil {
		text += fmt.Sprintf(", exit status %d", *status)
	}
	if row.Remark != "" {
		text += "; " + row.Remark
	}
	text += fmt.Sprintf("\n%s, process %s of %s", row.Command, row.Process, row.User)
	if row.Token != "" {
		text += "\ntoken " + row.Token
	}
	return text
}

// scale maps instants to positions in the picture's width.
type scale struct{ from, to time.Time }

// newScale covers the runs. It goes on until now, unless the time since the last run is longer than
// the time that the runs cover.
func newScale(runs []ledger.Entry, now time.Time) scale {
	s := scale{runs[0].Started, runs[0].Started}
	for _, r := range runs {
		for _, t := range []time.Time{r.Started.Add(-r.Waited), r.Started, r.Ended} {
			if t.IsZero() {
				continue
			}
			if t.Before(s.from) {
				s.from = t
			}
			if t.After(s.to) {
				s.to = t
			}
		}
		if r.Outcome == ledger.Running {
			s.to = now
		}
	}
	span := max(s.to.Sub(s.from), time.Minute)
	if idle := now.Sub(s.to); idle >= 0 && idle <= span {
		s.to = now
	} else {
		s.to = s.to.Add(span / 50)
	}
	return s
}

func (s scale) at(t time.Time) float64 {
	return 100 * float64(t.Sub(s.from)) / float64(max(s.to.Sub(s.from), 1))
}

func percent(f float64) string { return strconv.FormatFloat(f, 'f', 3, 64) + "%" }

// draw makes a lane for each host, in the order of their names, and one for missed runs.
func (r *report) draw(p pastRuns, runs []ledger.Entry, s scale) {
	var hosts []string
	for _, run := range runs {
		if !slices.Contains(hosts, run.Host) {
			hosts = append(hosts, run.Host)
		}
	}
	slices.Sort(hosts)
	for i, host := range hosts {
		top := i * laneHeight
		l := lane{Host: visible.Text(host), TextY: top + 14, BarY: top + 20}
		for j, run := range runs {
			if run.Host != host {
				continue
			}
			end := run.Ended
			if run.Outcome == ledger.Running {
				end = p.history.Now
			}
			if end.Before(run.Started) {
				end = run.Started
			}
			l.Bars = append(l.Bars, bar{
				Class: outcomeClass(run), X: percent(s.at(run.Started)), Width: percent(max(leastWidth, s.at(end)-s.at(run.Started))),
				Y: strconv.Itoa(l.BarY), Height: strconv.Itoa(barHeight), Title: p.title(j), Row: rowOf(run),
			})
			if run.Waited > 0 {
				r.Delayed = true
				from := run.Started.Add(-run.Waited)
				l.Delays = append(l.Delays, bar{
					X: percent(s.at(from)), Width: percent(s.at(run.Started) - s.at(from)), Y: strconv.Itoa(l.BarY), Height: strconv.Itoa(barHeight),
					Title: "lock-delay of " + took(run.Waited) + " before this start",
				})
			}
		}
		slices.Reverse(l.Bars) // the newest on top
		r.Lanes = append(r.Lanes, l)
	}
	bottom := len(hosts) * laneHeight
	every, missed := missedTicks(runs, p.history.Now, p.every)
	if len(missed) > 0 {
		r.Every = (&duration{value: every.Round(max(time.Second, every/100).Truncate(time.Second))}).String()
		r.MissedY = bottom + 20 + barHeight/2
		for _, t := range missed {
			if at := s.at(t); at >= 0 && at <= 100 {
				r.Missed = append(r.Missed, mark{X: percent(at), Title: "due about " + t.Local().Format("2006-01-02 15:04") + ", nobody ran"})
			}
		}
		bottom += laneHeight
	}
	r.AxisY, r.LabelY, r.Height = bottom+6, bottom+24, bottom+30
	r.Axis = s.axis()
}

// drawColumns makes a column for each run. Its height is the run's duration.
func (r *report) drawColumns(p pastRuns, runs []ledger.Entry) {
	length := func(run ledger.Entry) time.Duration {
		if run.Outcome == ledger.Running {
			return p.history.Now.Sub(run.Started)
		}
		return run.Took()
	}
	longest := time.Duration(1)
	for _, run := range runs {
		longest = max(longest, length(run))
	}
	// A very long run must not make all others look alike.
	top, usually := longest, p.history.Usually()
	const manyTimes = 4
	if most := manyTimes * usually; most > 0 && longest > most {
		top, r.Cut = most, true
	}
	high := func(d time.Duration) float64 { return columnsTop * float64(min(d, top)) / float64(top) }
	width := 100 / float64(max(len(runs), 20))
	for i, run := range runs {
		h := max(3, high(length(run)))
		r.Columns = append(r.Columns, bar{
			Class: outcomeClass(run), X: percent((float64(len(runs)-1-i) + 0.12) * width), Width: percent(width * 0.76),
			Y: fmt.Sprintf("%.1f", columnsTop-h), Height: fmt.Sprintf("%.1f", h), Title: p.title(i), Row: rowOf(run), Cut: length(run) > top,
		})
	}
	r.Longest = took(longest)
	if usually > 0 {
		r.Usually, r.UsuallyY = took(usually), fmt.Sprintf("%.1f", columnsTop-high(usually))
	}
}

// axis has some instants at round times, in the local zone.
func (s scale) axis() (marks []mark) {
	const most = 8
	const day = 24 * time.Hour
	step := time.Duration(0)
	for _, step = range []time.Duration{
		time.Second, 5 * time.Second, 15 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
		day, 2 * day, 4 * day, 7 * day, 14 * day, 28 * day, 91 * day, 364 * day, 10 * 364 * day,
	} {
		if s.to.Sub(s.from)/step <= most {
			break
		}
	}
	year, month, date := s.from.Local().Date()
	t := time.Date(year, month, date, 0, 0, 0, 0, time.Local)
	for n := 0; t.Before(s.to) && n < 100_000; n++ {
		if at := s.at(t); at >= 5 && at <= 95 {
			text := t.Format("15:04")
			switch {
			case step > 91*day:
				text = t.Format("Jan 2006")
			case step >= day || t.Hour() == 0 && t.Minute() == 0 && t.Second() == 0:
				text = t.Format("Jan 2")
			case step < time.Minute:
				text = t.Format(time.TimeOnly)
			}
			marks = append(marks, mark{X: percent(at), Text: text, Minor: len(marks)%2 == 1})
		}
		if step >= day { // some days have 23 hours
			t = t.AddDate(0, 0, int(step/day))
		} else {
			t = t.Add(step)
		}
	}
	return marks
}
