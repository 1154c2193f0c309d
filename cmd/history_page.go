package cmd

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"strconv"
	"strings"
)

//go:embed history_page.css
var reportStyle string

// markup builds HTML. html/template would do as well, but would make the program 2 MiB
// larger for this one page: it keeps the linker from leaving out methods.
type markup struct{ strings.Builder }

// add writes HTML. Each %s in it stands for a text, in an element or in a quoted attribute.
func (p *markup) add(format string, texts ...string) {
	escaped := make([]any, len(texts))
	for i, text := range texts {
		escaped[i] = html.EscapeString(text)
	}
	fmt.Fprintf(p, format, escaped...)
}

func writeReport(w io.Writer, p pastRuns) error {
	_, err := io.WriteString(w, newReport(p).page())
	return err
}

func (r report) page() string {
	var p markup
	p.add(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>%s: history</title>
<style>
`, r.Key)
	_, _ = p.WriteString(reportStyle) // it never fails
	p.add(`</style>
</head>
<body>
<header>
<h1>%s</h1>
<p>%s</p>
`, r.Key, r.Summary)
	r.addLegend(&p)
	p.add("</header>\n")
	if len(r.Lanes) > 0 {
		r.addLanes(&p)
		r.addColumns(&p)
		r.addRows(&p)
	}
	p.add("<footer>")
	if len(r.Lanes) > 0 {
		p.add("<p>Lost: nobody could say how the run ended; the next one starts when its command is dead for certain, " +
			"at the latest after the lock-delay. Stopped: somebody asked it to end.</p>\n")
	}
	p.add("<p>Made %s by pglead history from %s. Times are %s.</p></footer>\n</body>\n</html>\n", r.Made, r.Target, r.Zone)
	return p.String()
}

func (r report) addLegend(p *markup) {
	if len(r.Legend) == 0 {
		return
	}
	p.add("<ul class=\"legend\">\n")
	for _, l := range r.Legend {
		p.add(`<li><svg aria-hidden="true"><rect class="run %s" x="1" y="1" width="12" height="12" rx="1"/></svg><b>%s</b> %s</li>`+"\n",
			l.Class, strconv.Itoa(l.Count), l.Class)
	}
	if r.Delayed {
		p.add(`<li><svg aria-hidden="true"><rect class="delay" x="1" y="1" width="12" height="12"/></svg>lock-delay</li>` + "\n")
	}
	if len(r.Missed) > 0 {
		p.add(`<li><svg aria-hidden="true"><circle class="missed" cx="7" cy="7" r="5"/></svg><b>%s</b> due, nobody ran</li>`+"\n", strconv.Itoa(len(r.Missed)))
	}
	p.add("</ul>\n")
}

func (r report) addLanes(p *markup) {
	runs := plural(r.All, "run")
	if r.Drawn < r.All {
		runs = fmt.Sprintf("the newest %d of %s", r.Drawn, runs)
	}
	p.add(`<h2>When and where <small>%s</small></h2>
<div class="picture">
<svg class="lanes" height="%s" role="img" aria-label="Runs of %s by host and time">
<defs><pattern id="hatch" patternUnits="userSpaceOnUse" width="6" height="6" patternTransform="rotate(45)">`+
		`<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>
`, runs, strconv.Itoa(r.Height), r.Key)
	for _, m := range r.Axis {
		class := ""
		if m.Minor {
			class = "minor"
		}
		p.add(`<line class="axis" x1="%s" x2="%s" y1="0" y2="%s"/><text x="%s" y="%s" text-anchor="middle" class="%s">%s</text>`+"\n",
			m.X, m.X, strconv.Itoa(r.AxisY), m.X, strconv.Itoa(r.LabelY), class, m.Text)
	}
	for _, l := range r.Lanes {
		p.add(`<text class="host" x="0" y="%s">%s</text>`+"\n", strconv.Itoa(l.TextY), l.Host)
		p.add(`<rect class="ground" x="0" y="%s" width="100%%" height="20"/>`+"\n", strconv.Itoa(l.BarY))
		for _, b := range l.Delays {
			p.add(`<rect class="delay" x="%s" y="%s" width="%s" height="%s"><title>%s</title></rect>`+"\n", b.X, b.Y, b.Width, b.Height, b.Title)
		}
		for _, b := range l.Bars {
			b.add(p)
		}
	}
	if len(r.Missed) > 0 {
		y := strconv.Itoa(r.MissedY)
		p.add(`<text class="host" x="0" y="%s" dy="-16">due every %s, nobody ran</text>`+"\n", y, r.Every)
		for _, m := range r.Missed {
			p.add(`<circle class="missed" cx="%s" cy="%s" r="5"><title>%s</title></circle>`+"\n", m.X, y, m.Title)
		}
	}
	p.add("</svg>\n</div>\n")
}

// add draws a run, with a link to its row.
func (b bar) add(p *markup) {
	p.add(`<a href="#%s"><rect class="run %s" x="%s" y="%s" width="%s" height="%s"><title>%s</title></rect>`,
		b.Row, b.Class, b.X, b.Y, b.Width, b.Height, b.Title)
	if b.Cut {
		p.add(`<rect class="cut" x="%s" y="7" width="%s" height="4"/>`, b.X, b.Width)
	}
	p.add("</a>\n")
}

func (r report) addColumns(p *markup) {
	longest := r.Longest
	if r.Cut {
		longest += " (cut off)"
	}
	if r.Usually != "" {
		longest += ", usually " + r.Usually + " (dashed)"
	}
	p.add(`<h2>How long <small>the same runs, the oldest first; longest %s</small></h2>
<div class="picture">
<svg class="columns" height="100" role="img" aria-label="How long the runs of %s took">
<line class="axis" x1="0" x2="100%%" y1="96.5" y2="96.5"/>
`, longest, r.Key)
	for _, b := range r.Columns {
		b.add(p)
	}
	if r.Usually != "" {
		p.add(`<line class="usual" x1="0" x2="100%%" y1="%s" y2="%s"><title>usually %s</title></line>`+"\n", r.UsuallyY, r.UsuallyY, r.Usually)
	}
	p.add("</svg>\n</div>\n")
}

func (r report) addRows(p *markup) {
	p.add(`<h2>Runs</h2>
<table>
<thead><tr><th>Started</th><th>Host</th><th>Took</th><th>Result</th>` +
		`<th class="wide">Command</th><th class="wide">User</th><th class="wide">Process</th><th class="wide">Token</th></tr></thead>
<tbody>
`)
	for _, row := range r.Rows {
		p.add(`<tr id="%s"><td class="time" title="%s">%s<span class="wide">%s</span></td>`, row.ID, row.Instant, row.Started, row.Seconds)
		p.add(`<td class="host" title="%s">%s<span class="wide">%s</span></td>`, row.Host+row.Domain, row.Host, row.Domain)
		p.add(`<td class="time">%s</td>`, row.Took)
		p.add(`<td class="result %s">%s <span>%s</span></td>`, row.Class, row.Result, row.Remark)
		p.add(`<td class="wide">%s</td><td class="wide">%s</td><td class="wide">%s</td><td class="wide">%s</td></tr>`+"\n",
			row.Command, row.User, row.Process, row.Token)
	}
	p.add("</tbody>\n</table>\n")
}
