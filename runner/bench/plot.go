//go:build linux

package main

import (
	"fmt"
	"math"
	"strings"
)

// chart shows how something grows with a number, both on logarithmic scales.
type chart struct {
	of, unit  string
	low, high float64 // of the scale: powers of ten
	numbers   []int
	lines     []line
}

type line struct {
	name, colour string
	dashed       bool
	values       []float64 // one for each number
}

const (
	plotWidth, plotHeight                    = 640, 300
	plotLeft, plotBottom, plotTop, plotRight = 70, 40, 20, 160
)

// plot draws charts, one below the other.
func plot(charts []chart) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight*len(charts))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight*len(charts))
	for i, c := range charts {
		fmt.Fprintf(&b, `<g transform="translate(0 %d)">`+"\n", plotHeight*i)
		c.draw(&b)
		b.WriteString("</g>\n")
	}
	return b.String() + "</svg>\n"
}

func (c chart) draw(b *strings.Builder) {
	least, most := float64(c.numbers[0]), float64(c.numbers[len(c.numbers)-1])
	x := func(n int) float64 {
		return plotLeft + (plotWidth-plotLeft-plotRight)*math.Log(float64(n)/least)/max(1e-9, math.Log(most/least))
	}
	y := func(v float64) float64 {
		return plotHeight - plotBottom - (plotHeight-plotBottom-plotTop)*math.Log(min(max(v, c.low), c.high)/c.low)/math.Log(c.high/c.low)
	}
	for v := c.low; v <= c.high*1.01; v *= 10 {
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g %s</text>`+"\n",
			plotLeft, plotWidth-plotRight, y(v), y(v), plotLeft-6, y(v)+4, v, c.unit)
	}
	for _, n := range c.numbers {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(n), plotHeight-plotBottom+16, n)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (plotLeft+plotWidth-plotRight)/2, plotHeight-6, c.of)
	for _, l := range c.lines {
		var path []string
		for i, v := range l.values {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(c.numbers[i]), y(v)))
		}
		dashes := ""
		if l.dashed {
			dashes = "4 3"
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-dasharray="%s" stroke-width="2"/><text x="%d" y="%.1f" fill="%s">%s</text>`+"\n",
			strings.Join(path, " "), l.colour, dashes, plotWidth-plotRight+8, y(l.values[len(l.values)-1])+4, l.colour, l.name)
	}
}
