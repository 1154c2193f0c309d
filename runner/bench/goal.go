//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"
)

// goal is a limit that a figure has to keep.
type goal struct {
	what     string
	measured float64 // not a number if there is none
	sign     string  // of the limit: ≤ or ≥
	bound    float64
	unit     string
}

func (b *bench) goal(what string, measured, most float64, unit string) {
	b.goals = append(b.goals, goal{what, measured, "≤", most, unit})
}

func (b *bench) goalAtLeast(what string, measured, least float64, unit string) {
	b.goals = append(b.goals, goal{what, measured, "≥", least, unit})
}

func (g goal) kept() bool {
	if g.sign == "≥" {
		return g.measured >= g.bound
	}
	return g.measured <= g.bound
}

// part measures one part and prints at its end which goals were met, so that
// somebody who stops the benchmark later has them.
func (b *bench) part(p part) error {
	began, before := time.Now(), len(b.goals)
	err := p.run(b)
	if err != nil {
		err = fmt.Errorf("measure %s: %w", p.name, err)
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	took := time.Since(began)
	missed := slices.DeleteFunc(slices.Clone(b.goals[before:]), goal.kept)
	fmt.Fprintf(os.Stderr, "bench: %s took %.0f s", p.name, took.Seconds())
	for _, g := range missed {
		fmt.Fprintf(os.Stderr, "; missed: %s, %.3g%s", g.what, g.measured, g.unit)
	}
	fmt.Fprintln(os.Stderr)
	return errors.Join(err, b.writeJSON(p.name, b.goals[before:], took))
}

// writeJSON adds a line for each goal of a part to the file that was asked for.
func (b *bench) writeJSON(part string, goals []goal, took time.Duration) error {
	if b.json == "" {
		return nil
	}
	out, err := os.OpenFile(b.json, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644) //nolint:gosec // figures are no secret
	if err != nil {
		return err
	}
	lines := json.NewEncoder(out)
	for _, g := range goals {
		line := map[string]any{"part": part, "goal": g.what, "sign": g.sign, "bound": g.bound, "measured": g.measured,
			"unit": strings.TrimSpace(g.unit), "kept": g.kept(), "part_seconds": math.Round(took.Seconds())}
		if math.IsNaN(g.measured) {
			line["measured"] = nil
		}
		err = errors.Join(err, lines.Encode(line))
	}
	return errors.Join(err, out.Close())
}

func printGoals(goals []goal) {
	if len(goals) == 0 {
		return
	}
	section("Goals", "", "| goal | bound | measured | |\n|---|---|---|---|")
	for _, g := range goals {
		verdict := "kept"
		if !g.kept() {
			verdict = "**missed**"
		}
		fmt.Printf("| %s | %s %.4g%s | %.3g%s | %s |\n", g.what, g.sign, g.bound, g.unit, g.measured, g.unit, verdict)
	}
}

// section begins a table in the format of testdata/bench/RESULTS.md.
func section(title, note, table string) {
	fmt.Printf("\n## %s\n", title)
	for _, text := range []string{note, table} {
		if text != "" {
			fmt.Printf("\n%s\n", text)
		}
	}
}
