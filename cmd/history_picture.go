package cmd

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/visible"
)

const (
	mostDrawn  = 100 // runs: so many fit into a picture of the width of a phone
	laneHeight = 46
	barHeight  = 20
	leastWidth = 0.02 // in percent: without a width a bar is not drawn at all
	columnsTop = 96   // the height of the longest column, in pixels
)

// picture is what the pictures show: runs, and instants at which one was due. Instants become
// positions in the pictures' width, in percent.
type picture struct {
	runs     []ledger.Entry // the newest of all
	from, to time.Time
	every    time.Duration // how often a run is due
	missed   []time.Time
}

// newPicture covers the newest runs. It goes on until now, unless the time since the last run is
// longer than the time that the runs cover.
func newPicture(past pastRuns) (p picture) {
	if len(past.history.Runs) == 0 {
		return p
	}
	now := past.history.Now
	p.runs = past.history.Runs[:min(len(past.history.Runs), mostDrawn)]
	var times []time.Time
	for _, r := range p.runs {
		times = append(times, r.Started.Add(-r.Waited), r.Started)
		switch {
		case r.Outcome == ledger.Running:
			times = append(times, now)
		case !r.Ended.IsZero():
			times = append(times, r.Ended)
		}
	}
	p.from, p.to = slices.MinFunc(times, time.Time.Compare), slices.MaxFunc(times, time.Time.Compare)
	span := max(p.to.Sub(p.from), time.Minute)
	if idle := now.Sub(p.to); idle >= 0 && idle <= span {
		p.to = now
	} else {
		p.to = p.to.Add(span / 50)
	}
	p.every, p.missed = missedTicks(p.runs, now, past.every)
	p.missed = slices.DeleteFunc(p.missed, func(t time.Time) bool { return p.at(t) < 0 || p.at(t) > 100 })
	return p
}

func (p picture) at(t time.Time) float64 {
	return 100 * float64(t.Sub(p.from)) / float64(max(p.to.Sub(p.from), 1))
}

// addLanes makes a lane for each host, in the order of their names, and one for missed runs.
func (p *historyPage) addLanes(key string) {
	var hosts []string
	for _, r := range p.picture.runs {
		hosts = append(hosts, r.Host)
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	missedY := len(hosts)*laneHeight + 20 + barHeight/2
	bottom := len(hosts) * laneHeight
	if len(p.picture.missed) > 0 {
		bottom += laneHeight
	}
	runs := plural(len(p.history.Runs), "run")
	if drawn := len(p.picture.runs); drawn < len(p.history.Runs) {
		runs = fmt.Sprintf("the newest %d of %s", drawn, runs)
	}
	p.add(`<h2>When and where <small>%s</small></h2>
<div class="picture">
<svg class="lanes" height="%d" role="img" aria-label="Runs of %s by host and time">
<defs><pattern id="hatch" patternUnits="userSpaceOnUse" width="6" height="6" patternTransform="rotate(45)">`+
		`<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>
`, runs, bottom+30, key)
	p.addAxis(bottom + 6)
	for i, host := range hosts {
		p.addLane(i*laneHeight, host)
	}
	if len(p.picture.missed) > 0 {
		every := duration{value: p.picture.every.Round(max(time.Second, p.picture.every/100).Truncate(time.Second))}
		p.add(`<text class="host" x="0" y="%d" dy="-16">due every %s, nobody ran</text>`+"\n", missedY, every.String())
	}
	for _, t := range p.picture.missed {
		p.add(`<circle class="missed" cx="%.3f%%" cy="%d" r="5"><title>due about %s, nobody ran</title></circle>`+"\n",
			p.picture.at(t), missedY, t.Local().Format("2006-01-02 15:04"))
	}
	p.add("</svg>\n</div>\n")
}

// addLane draws the runs of a host, the newest on top.
func (p *historyPage) addLane(top int, host string) {
	y, at := strconv.Itoa(top+20), p.picture.at
	p.add(`<text class="host" x="0" y="%d">%s</text>`+"\n", top+14, visible.Text(host))
	p.add(`<rect class="ground" x="0" y="%s" width="100%%" height="20"/>`+"\n", y)
	for _, r := range p.picture.runs {
		if from := at(r.Started.Add(-r.Waited)); r.Host == host && r.Waited > 0 {
			p.add(`<rect class="delay" x="%.3f%%" y="%s" width="%.3f%%" height="%d"><title>lock-delay of %s before this start</title></rect>`+"\n",
				from, y, at(r.Started)-from, barHeight, took(r.Waited))
		}
	}
	for i, r := range slices.Backward(p.picture.runs) {
		if r.Host == host {
			end := r.Started.Add(max(0, p.length(r)))
			p.addRun(i, at(r.Started), max(leastWidth, at(end)-at(r.Started)), y, strconv.Itoa(barHeight))
			p.add("</a>\n")
		}
	}
}

// addRun draws a run as a bar or a column, in a link to its row. The caller ends the link.
func (p *historyPage) addRun(i int, x, width float64, y, height string) {
	r := p.history.Runs[i]
	p.add(`<a href="#%s"><rect class="run %s" x="%.3f%%" y="%s" width="%.3f%%" height="%s"><title>%s</title></rect>`,
		rowOf(r), outcomeClass(r), x, y, width, height, p.title(i))
}

// length is how long a run took, or has taken until now.
func (p *historyPage) length(r ledger.Entry) time.Duration {
	if r.Outcome == ledger.Running {
		return p.history.Now.Sub(r.Started)
	}
	return r.Took()
}

// addColumns makes a column for each run. Its height is the run's duration.
func (p *historyPage) addColumns(key string) {
	longest := time.Duration(1)
	for _, r := range p.picture.runs {
		longest = max(longest, p.length(r))
	}
	text, usually := took(longest), p.history.MedianDuration()
	// A very long run must not make all others look alike.
	top := longest
	const manyTimes = 4
	if most := manyTimes * usually; most > 0 && longest > most {
		top = most
		text += " (cut off)"
	}
	if usually > 0 {
		text += ", usually " + took(usually) + " (dashed)"
	}
	p.add(`<h2>How long <small>the same runs, the oldest first; longest %s</small></h2>
<div class="picture">
<svg class="columns" height="100" role="img" aria-label="How long the runs of %s took">
<line class="axis" x1="0" x2="100%%" y1="96.5" y2="96.5"/>
`, text, key)
	high := func(d time.Duration) float64 { return columnsTop * float64(min(d, top)) / float64(top) }
	pixels := func(n float64) string { return strconv.FormatFloat(n, 'f', 1, 64) }
	runs := p.picture.runs
	width := 100 / float64(max(len(runs), 20))
	for i, r := range runs {
		h, x := max(3, high(p.length(r))), (float64(len(runs)-1-i)+0.12)*width
		p.addRun(i, x, width*0.76, pixels(columnsTop-h), pixels(h))
		if p.length(r) > top {
			p.add(`<rect class="cut" x="%.3f%%" y="7" width="%.3f%%" height="4"/>`, x, width*0.76)
		}
		p.add("</a>\n")
	}
	if usually > 0 {
		y := columnsTop - high(usually)
		p.add(`<line class="usual" x1="0" x2="100%%" y1="%.1f" y2="%.1f"><title>usually %s</title></line>`+"\n", y, y, took(usually))
	}
	p.add("</svg>\n</div>\n")
}

// addAxis marks some instants at round times, in the local zone.
func (p *historyPage) addAxis(bottom int) {
	const most = 8
	from, to := p.picture.from, p.picture.to
	step := time.Duration(0)
	for _, step = range []time.Duration{
		time.Second, 5 * time.Second, 15 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
		day, 2 * day, 4 * day, 7 * day, 14 * day, 28 * day, 91 * day, 364 * day, 10 * 364 * day,
	} {
		if to.Sub(from)/step <= most {
			break
		}
	}
	year, month, date := from.Local().Date()
	class := []string{"", "minor"} // every other one is left out if there is little room
	for t, n := time.Date(year, month, date, 0, 0, 0, 0, time.Local), 0; t.Before(to) && n < 100_000; n++ {
		if x := p.picture.at(t); x >= 5 && x <= 95 {
			p.add(`<line class="axis" x1="%.3f%%" x2="%.3f%%" y1="0" y2="%d"/><text x="%.3f%%" y="%d" text-anchor="middle" class="%s">%s</text>`+"\n",
				x, x, bottom, x, bottom+18, class[0], axisText(t, step))
			slices.Reverse(class)
		}
		if step >= day { // some days have 23 hours
			t = t.AddDate(0, 0, int(step/day))
		} else {
			t = t.Add(step)
		}
	}
}

func axisText(t time.Time, step time.Duration) string {
	switch {
	case step > 91*day:
		return t.Format("Jan 2006")
	case step >= day || t.Hour() == 0 && t.Minute() == 0 && t.Second() == 0:
		return t.Format("Jan 2")
	case step < time.Minute:
		return t.Format(time.TimeOnly)
	}
	return t.Format("15:04")
}

// missedTicks are the instants at which a run was due but no host had one. The newest run comes
// first. If every doesn't say how often a run is due, missedTicks infers it from the
// runs, provided that nearly all are equally far apart.
func missedTicks(runs []ledger.Entry, now time.Time, every time.Duration) (time.Duration, []time.Time) {
	const (
		mostGuessed = 10  // in a row: a longer gap may be a weekend
		most        = 500 // marks in a picture
	)
	var starts []time.Time
	for _, r := range slices.Backward(runs) {
		starts = append(starts, r.Started)
	}
	guessed := every <= 0
	if guessed {
		every = regularGap(starts)
	}
	if every <= 0 {
		return 0, nil
	}
	var missed []time.Time
	for i, start := range starts {
		due := 0
		if i+1 < len(starts) {
			due = int((starts[i+1].Sub(start)+every/2)/every) - 1
		} else {
			due = int((now.Sub(start) - every/4) / every) // a run that is a little late is not missed yet
		}
		if guessed && due > mostGuessed {
			continue
		}
		for j := 1; j <= due && len(missed) < most; j++ {
			missed = append(missed, start.Add(time.Duration(j)*every))
		}
	}
	return every, missed
}

// regularGap is the median of the gaps between starts, or zero if they differ much.
func regularGap(starts []time.Time) time.Duration {
	const least = 8
	var gaps []time.Duration
	for i := 1; i < len(starts); i++ {
		gaps = append(gaps, starts[i].Sub(starts[i-1]))
	}
	if len(gaps) < least {
		return 0
	}
	slices.Sort(gaps)
	median := gaps[len(gaps)/2]
	near := 0
	for _, gap := range gaps {
		if (gap - median).Abs() <= median/5 {
			near++
		}
	}
	if near*10 < len(gaps)*8 {
		return 0
	}
	return median
}
