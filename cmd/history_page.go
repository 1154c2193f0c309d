package cmd

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/visible"
)

//go:embed history_page.css
var pageStyle string

// mostOnPage is how many runs a page has in its table.
const mostOnPage = 1000

// historyPage is the page of a history while it is written. In it, texts that others wrote have no
// invisible characters, and no HTML.
//
// html/template would do as well, but would make the program 2 MiB larger for this one page: it
// keeps the linker from leaving out methods.
type historyPage struct {
	strings.Builder
	pastRuns
	picture picture
}

// add writes HTML. Each %s in it stands for a text, in an element or in a quoted attribute.
func (p *historyPage) add(format string, values ...any) {
	for i, value := range values {
		if text, ok := value.(string); ok {
			values[i] = html.EscapeString(text)
		}
	}
	fmt.Fprintf(p, format, values...)
}

func writeHistoryPage(w io.Writer, past pastRuns) error {
	if past.history.Now.IsZero() {
		past.history.Now = time.Now()
	}
	p := historyPage{pastRuns: past, picture: newPicture(past)}
	key, some := visible.Text(past.key), len(past.history.Runs) > 0
	p.add(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>%s: history</title>
<style>
`, key)
	_, _ = p.WriteString(pageStyle) // it never fails
	p.add(`</style>
</head>
<body>
<header>
<h1>%s</h1>
<p>%s</p>
`, key, past.summary())
	if some {
		p.addLegend()
	}
	p.add("</header>\n")
	if some {
		p.addLanes(key)
		p.addColumns(key)
		p.addTable()
	}
	p.add("<footer>")
	if some {
		p.add("<p>Lost: nobody could say how the run ended; the next one starts when its command is dead for certain, " +
			"at the latest after the lock-delay. Stopped: somebody asked it to end.</p>\n")
	}
	now := past.history.Now.Local()
	zone, _ := now.Zone()
	p.add("<p>Made %s by pglead history from %s. Times are %s.</p></footer>\n</body>\n</html>\n",
		now.Format("Mon, 2 Jan 2006 15:04"), visible.Text(past.target), zone)
	_, err := io.WriteString(w, p.String())
	return err
}

// summary answers a reader's first questions.
func (p pastRuns) summary() string {
	runs, now := p.history.Runs, p.history.Now
	if len(runs) == 0 {
		return "No run is remembered."
	}
	newest := func(of ledger.Outcome) int {
		return slices.IndexFunc(runs, func(r ledger.Entry) bool { return r.Outcome == of })
	}
	text := ""
	if i := newest(ledger.Running); i >= 0 {
		text = fmt.Sprintf("Running on %s for %s. ", visible.Text(runs[i].Host), roughly(now.Sub(runs[i].Started)))
	}
	if i := newest(ledger.OK); i >= 0 {
		text += fmt.Sprintf("Last success %s on %s, ended %s ago.", when(runs[i].Started, now), visible.Text(runs[i].Host), roughly(now.Sub(runs[i].Ended)))
	} else {
		text += "No success among these runs."
	}
	if usually := p.history.MedianDuration(); usually > 0 {
		text += " Usually takes " + took(usually) + "."
	}
	return text
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

func (p *historyPage) addLegend() {
	p.add("<ul class=\"legend\">\n")
	count := map[string]int{}
	for _, r := range p.history.Runs {
		count[outcomeClass(r)]++
	}
	for _, outcome := range outcomes() {
		if class := string(outcome); count[class] > 0 {
			p.add(`<li><svg aria-hidden="true"><rect class="run %s" x="1" y="1" width="12" height="12" rx="1"/></svg><b>%d</b> %s</li>`+"\n",
				class, count[class], class)
		}
	}
	if slices.ContainsFunc(p.picture.runs, func(r ledger.Entry) bool { return r.Waited > 0 }) {
		p.add(`<li><svg aria-hidden="true"><rect class="delay" x="1" y="1" width="12" height="12"/></svg>lock-delay</li>` + "\n")
	}
	if missed := len(p.picture.missed); missed > 0 {
		p.add(`<li><svg aria-hidden="true"><circle class="missed" cx="7" cy="7" r="5"/></svg><b>%d</b> due, nobody ran</li>`+"\n", missed)
	}
	p.add("</ul>\n")
}

// addTable writes a row for each run. What is wide is hidden on a phone.
func (p *historyPage) addTable() {
	p.add(`<h2>Runs</h2>
<table>
<thead><tr><th>Started</th><th>Host</th><th>Took</th><th>Result</th>` +
		`<th class="wide">Command</th><th class="wide">User</th><th class="wide">Process</th><th class="wide">Token</th></tr></thead>
<tbody>
`)
	now, short := p.history.Now, shortNames(p.history.Runs)
	for i, r := range p.history.Runs {
		started, seconds := when(r.Started, now), ""
		if exactly := whenExactly(r.Started, now); strings.HasPrefix(exactly, started) {
			seconds = exactly[len(started):]
		}
		host, domain := visible.Text(r.Host), ""
		if short {
			name, _, _ := strings.Cut(host, ".")
			host, domain = name, host[len(name):]
		}
		result, remark := p.result(i)
		p.add(`<tr id="%s"><td class="time" title="%s">%s<span class="wide">%s</span></td>`, rowOf(r), instant(r), started, seconds)
		p.add(`<td class="host" title="%s">%s<span class="wide">%s</span></td>`, host+domain, host, domain)
		p.add(`<td class="time">%s</td>`, p.lasted(r))
		p.add(`<td class="result %s">%s <span>%s</span></td>`, outcomeClass(r), visible.Text(result), remark)
		p.add(`<td class="wide">%s</td><td class="wide">%s</td><td class="wide">%d</td><td class="wide">%s</td></tr>`+"\n",
			visible.Text(r.Command), visible.Text(r.User), r.PID, tokenOf(r))
	}
	p.add("</tbody>\n</table>\n")
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

// rowOf is the name of a run's row.
func rowOf(r ledger.Entry) string {
	if r.Missing() {
		return "m" + strconv.FormatInt(r.Started.UnixMicro(), 10)
	}
	return "t" + strconv.FormatInt(r.Token, 10)
}

func instant(r ledger.Entry) string { return r.Started.Local().Format("2006-01-02 15:04:05 -07:00") }

// tokenOf is empty for a run whose command could not be executed.
func tokenOf(r ledger.Entry) string {
	if r.Missing() {
		return ""
	}
	return strconv.FormatInt(r.Token, 10)
}

// title is the text about a run that a reader sees when pointing at it.
func (p pastRuns) title(i int) string {
	r := p.history.Runs[i]
	result, remark := p.result(i)
	text := fmt.Sprintf("%s on %s\n%s", instant(r), visible.Text(r.Host), visible.Text(result))
	if lasted := p.lasted(r); lasted != "" {
		text += ", " + lasted
	}
	if r.Status != nil {
		text += fmt.Sprintf(", exit status %d", *r.Status)
	}
	if remark != "" {
		text += "; " + remark
	}
	text += fmt.Sprintf("\n%s, process %d of %s", visible.Text(r.Command), r.PID, visible.Text(r.User))
	if token := tokenOf(r); token != "" {
		text += "\ntoken " + token
	}
	return text
}
