//go:build linux

package main

import "fmt"

// goal is a bound that a figure has to keep.
type goal struct {
	what     string
	measured float64
	sign     string // of the bound: ≤ or ≥
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

func printGoals(goals []goal) {
	if len(goals) == 0 {
		return
	}
	fmt.Print("\n| goal | bound | measured | |\n|---|---|---|---|\n")
	for _, g := range goals {
		verdict := "kept"
		if !g.kept() {
			verdict = "**missed**"
		}
		fmt.Printf("| %s | %s %.4g%s | %.3g%s | %s |\n", g.what, g.sign, g.bound, g.unit, g.measured, g.unit, verdict)
	}
}
