package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"time"
)

// plain is the page's server: one such as many applications have, with more connections than
// PostgreSQL allows by default.
func plain(seed uint64) setup {
	return setup{processors: 8, connections: 500, lease: 15 * time.Second, seed: seed}
}

// page has the results that are printed and drawn.
type page struct {
	seed  uint64
	nodes []int
	loads []series // on the plain server
	moved []series // on others
}

// series is a load on a server, with ever more nodes.
type series struct {
	name    string
	of      setup
	play    func(*scene, int) figures
	figures []figures
}

// splay takes up most of the time between two firings of cron.
const splay = 4 * time.Minute

func play(seed uint64, most int) page {
	p := page{seed: seed}
	for n := 100; n <= most; n *= 10 {
		p.nodes = append(p.nodes, n)
	}
	server := plain(seed)
	p.loads = []series{{name: "cron", of: server, play: cron(0)}, {name: "CI", of: server, play: ci}, {name: "standby", of: server, play: standby}}

	pooler, roomy, slow, both := server, server, server, server
	pooler.pooler, pooler.connections = true, 50
	roomy.connections = 5000
	slow.lease = time.Minute
	both.lease, both.connections = time.Minute, 5000
	p.moved = []series{
		{name: "cron, `--splay 4m`", of: server, play: cron(splay)},
		{name: "cron, pooler", of: pooler, play: cron(0)},
		{name: "cron, `--splay 4m`, pooler", of: pooler, play: cron(splay)},
		{name: "CI, max_connections 5000", of: roomy, play: ci},
		{name: "CI, pooler, 5000", of: setup{processors: server.processors, connections: 5000, lease: server.lease, pooler: true, seed: seed}, play: ci},
		{name: "standby, `--lease 1m`", of: slow, play: standby},
		{name: "standby, 5000", of: roomy, play: standby},
		{name: "standby, 5000, `--lease 1m`", of: both, play: standby},
		{name: "standby, 5000, pooler", of: setup{processors: server.processors, connections: 5000, lease: server.lease, pooler: true, seed: seed}, play: standby},
	}
	for _, list := range [][]series{p.loads, p.moved} {
		for i := range list {
			for _, n := range p.nodes {
				list[i].figures = append(list[i].figures, list[i].play(newScene(list[i].of), n))
			}
		}
	}
	return p
}

func (p page) print(w io.Writer) {
	fmt.Fprintf(w, "| a day | logins | refused logins | xids | WAL | NOTIFYs |\n|---|---|---|---|---|---|\n")
	for _, s := range p.loads {
		for _, f := range s.figures {
			fmt.Fprintf(w, "| %s, %s | %s | %s | %s | %s | %s |\n", s.name, number(f.nodes), short(float64(f.day.logins)), short(float64(f.day.refused)),
				short(float64(f.day.xids)), bytes(f.day.wal), short(float64(f.day.words)))
		}
	}
	fmt.Fprintf(w, "\n| | connections | processors | last answer | without an answer |\n|---|---|---|---|---|\n")
	for _, s := range p.loads {
		for _, f := range s.figures {
			fmt.Fprintf(w, "| %s, %s | %s | %s | %s | %s |\n", s.name, number(f.nodes), number(f.peak), short(f.processors), seconds(f.last), share(f.noAnswer))
		}
	}
	fmt.Fprintf(w, "\n| processors, or what goes wrong |")
	for _, n := range p.nodes {
		fmt.Fprintf(w, " %s |", number(n))
	}
	fmt.Fprintf(w, "\n|---|---|---|---|---|\n")
	for _, s := range p.moved {
		fmt.Fprintf(w, "| %s |", s.name)
		for _, f := range s.figures {
			fmt.Fprintf(w, " %s |", f.verdict(s.of))
		}
		fmt.Fprintln(w)
	}
}

// verdict says how many processors are busy, and what goes wrong.
func (f figures) verdict(of setup) string {
	text := short(f.processors)
	if f.noAnswer > 0 {
		text += ", " + share(f.noAnswer) + " without an answer"
	}
	if f.day.refused > 0 {
		text += ", " + short(float64(f.day.refused)/day.Seconds()) + " refused a second"
	}
	if f.queued > 0 {
		text += ", " + short(float64(f.queued)) + " wait for the pool"
	}
	const most = .9
	if f.pooler > most {
		text += ", the pooler full"
	}
	if f.processors > of.processors*most || f.pooler > most || f.queued > f.nodes/10 {
		text = "**" + text + "**"
	}
	return text
}

// number writes a whole number with commas between its thousands.
func number(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", number(n/1000), n%1000)
}

// short writes a number with two significant digits.
func short(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 1e6:
		return strconv.FormatFloat(round(v/1e6), 'f', -1, 64) + " M"
	case v >= 1000:
		return number(int(round(v)))
	}
	return strconv.FormatFloat(round(v), 'f', -1, 64)
}

func round(v float64) float64 {
	if v == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(v))-1)
	rounded := math.Round(v/unit) * unit
	text := strconv.FormatFloat(rounded, 'g', 2, 64)
	rounded, _ = strconv.ParseFloat(text, 64)
	return rounded
}

func bytes(v float64) string {
	switch {
	case v >= 1e9:
		return short(v/1e9) + " GB"
	case v >= 1e6:
		return short(v/1e6) + " MB"
	}
	return short(v/1e3) + " kB"
}

func seconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return short(d.Seconds()) + " s"
}

func share(v float64) string {
	if v == 0 {
		return "0"
	}
	return strconv.FormatFloat(round(v*100), 'f', -1, 64) + " %"
}
