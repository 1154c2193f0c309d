package main

import (
	"fmt"
	"math"
	"strings"
)

// chart shows lines over the number of nodes. Both scales are logarithmic.
type chart struct {
	title     string
	low, high float64
	bound     float64 // a horizontal line
	boundName string
	lines     []line
}

type line struct {
	name, class string
	dashed      bool
	values      []float64
}

const (
	width, height            = 760, 330
	left, right, top, bottom = 70, 230, 34, 46
)

// draw returns the charts as SVG, in light or dark colours as the reader's machine prefers.
func (p page) draw() string {
	charts := []chart{
		{title: "processors of the server that are busy", low: .0001, high: 100, bound: plain(0).processors, boundName: "it has 8"},
		{title: "cron: seconds until the last of all nodes has its answer, or gives up", low: .1, high: 10000, bound: cronEvery.Seconds(), boundName: "the next firing"},
	}
	for i, class := range []string{"a", "b", "c"} {
		charts[0].add(p.loads[i], class, false)
	}
	for _, s := range p.moved {
		switch s.name {
		case "cron, `--splay 4m`, pooler":
			charts[0].add(s, "a", true)
		case "standby, 5000, `--lease 1m`":
			charts[0].add(s, "c", true)
		}
	}
	charts[1].last(p.loads[0], "a", false)
	charts[1].last(p.moved[1], "b", true)
	charts[1].last(p.moved[0], "c", false)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">
<style>
.ground{fill:#fff}text{fill:#222}.grid{stroke:#ddd}.bound{stroke:#888;stroke-dasharray:2 3}
.line{fill:none;stroke-width:2}.dashed{stroke-dasharray:6 4}
.a{stroke:#b42318}.b{stroke:#175cd3}.c{stroke:#067647}text.a,text.b,text.c{stroke:none}text.a{fill:#b42318}text.b{fill:#175cd3}text.c{fill:#067647}
@media (prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#ddd}.grid{stroke:#333}.bound{stroke:#999}
.a{stroke:#ff8a80}.b{stroke:#82b1ff}.c{stroke:#69dba8}text.a{fill:#ff8a80}text.b{fill:#82b1ff}text.c{fill:#69dba8}}
</style>
<rect class="ground" width="%[1]d" height="%[2]d"/>
`, width, height*len(charts))
	for i, c := range charts {
		fmt.Fprintf(&b, `<g transform="translate(0 %d)">`+"\n", height*i)
		c.draw(&b, p.nodes)
		b.WriteString("</g>\n")
	}
	return b.String() + "</svg>\n"
}

// add adds a line for the processors that a load keeps busy.
func (c *chart) add(s series, class string, dashed bool) {
	l := line{name: strings.ReplaceAll(s.name, "`", ""), class: class, dashed: dashed}
	for _, f := range s.figures {
		l.values = append(l.values, f.processors)
	}
	c.lines = append(c.lines, l)
}

// last adds a line for the time at which the last node has its answer.
func (c *chart) last(s series, class string, dashed bool) {
	l := line{name: strings.ReplaceAll(s.name, "`", ""), class: class, dashed: dashed}
	for _, f := range s.figures {
		l.values = append(l.values, f.last.Seconds())
	}
	c.lines = append(c.lines, l)
}

func (c chart) draw(b *strings.Builder, nodes []int) {
	x := func(i int) float64 {
		return left + float64(width-left-right)*float64(i)/float64(max(1, len(nodes)-1))
	}
	y := func(v float64) float64 {
		v = min(max(v, c.low), c.high)
		return height - bottom - (height-bottom-top)*math.Log(v/c.low)/math.Log(c.high/c.low)
	}
	fmt.Fprintf(b, `<text x="%d" y="18" font-weight="bold">%s</text>`+"\n", left, c.title)
	for v := c.low; v <= c.high*1.01; v *= 10 {
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			left, width-right, y(v), left-6, y(v)+4, short(v))
	}
	for i, n := range nodes {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(i), height-bottom+16, number(n))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">nodes</text>`+"\n", (left+width-right)/2, height-bottom+34)
	fmt.Fprintf(b, `<line class="bound" x1="%d" x2="%d" y1="%.1f" y2="%.1[3]f"/><text x="%d" y="%.1f">%s</text>`+"\n",
		left, width-right, y(c.bound), left+4, y(c.bound)-4, c.boundName)
	places := c.labels(y)
	for i, l := range c.lines {
		var points []string
		for j, v := range l.values {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(j), y(v)))
		}
		class := "line " + l.class
		if l.dashed {
			class += " dashed"
		}
		fmt.Fprintf(b, `<polyline class="%s" points="%s"/><text class="%s" x="%d" y="%.1f">%s</text>`+"\n",
			class, strings.Join(points, " "), l.class, width-right+8, places[i]+4, l.name)
	}
}

// labels are the heights of the lines' names: at the ends of the lines, but far enough apart that
// they don't overlap.
func (c chart) labels(y func(float64) float64) []float64 {
	const apart = 15
	places := make([]float64, len(c.lines))
	for i, l := range c.lines {
		places[i] = y(l.values[len(l.values)-1])
	}
	for range len(places) * len(places) {
		for i := range places {
			for j := range places {
				if d := places[j] - places[i]; i != j && d >= 0 && d < apart && (d > 0 || i < j) {
					places[j] = places[i] + apart
				}
			}
		}
	}
	return places
}
