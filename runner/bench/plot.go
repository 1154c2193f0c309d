//go:build linux

package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// plot draws handover times against the number of waiters, both on logarithmic
// scales.
func plot(points []point) string {
	const width, height, left, bottom, top, right = 640, 320, 60, 40, 20, 130
	most := float64(points[len(points)-1].waiters)
	least := float64(points[0].waiters)
	const low, high = 0.1, 1000.0 // ms
	x := func(n float64) float64 {
		return left + (width-left-right)*math.Log(n/least)/max(1e-9, math.Log(most/least))
	}
	y := func(v float64) float64 {
		return height - bottom - (height-bottom-top)*math.Log(min(max(v, low), high)/low)/math.Log(high/low)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for v := low; v <= high; v *= 10 {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%g ms</text>`+"\n",
			left, width-right, y(v), y(v), left-6, y(v)+4, v)
	}
	for _, p := range points {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", x(float64(p.waiters)), height-bottom+16, p.waiters)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">waiters on one key</text>`+"\n", (left+width-right)/2, height-6)
	for _, line := range []struct {
		name, colour, dashes string
		of                   func(point) time.Duration
	}{
		{"pglead p99", "#c33", "4 3", func(p point) time.Duration { return quantile(p.pglead, .99) }},
		{"pglead p50", "#c33", "", func(p point) time.Duration { return quantile(p.pglead, .5) }},
		{"C p99", "#36c", "4 3", func(p point) time.Duration { return quantile(p.floor, .99) }},
		{"C p50", "#36c", "", func(p point) time.Duration { return quantile(p.floor, .5) }},
	} {
		var path []string
		end := 0.0
		for _, p := range points {
			end = y(float64(line.of(p)) / float64(time.Millisecond))
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(float64(p.waiters)), end))
		}
		fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-dasharray="%s" stroke-width="2"/><text x="%d" y="%.1f" fill="%s">%s</text>`+"\n",
			strings.Join(path, " "), line.colour, line.dashes, width-right+8, end+4, line.colour, line.name)
	}
	return b.String() + "</svg>\n"
}
