//go:build linux

package main

import (
	"fmt"
	"slices"
	"time"
)

// line compares a handover in a long line with one between two, in turns.
func (b *bench) line() error {
	long := min(100, b.waiters)
	at, remove, err := b.guestServer(map[string]string{"max_connections": roomFor(long)})
	if err != nil {
		return err
	}
	defer remove()
	with := []string{b.pglead, "run", "--wait", "forever", "--key", key, "--"}
	env := slices.Concat(at.unix, numbered())
	var two, many []time.Duration
	var ratios []float64
	for range turns(either(b, 1, 9), 150*time.Second) {
		var short []time.Duration
		for range either(b, 2, 8) {
			times, _, err := b.queue(at, 2, env, with)
			if err != nil {
				return err
			}
			short = append(short, times...)
		}
		times, _, err := b.queue(at, long, env, with)
		if err != nil {
			return fmt.Errorf("%d waiters: %w", long, err)
		}
		two, many = append(two, short...), append(many, times...)
		ratios = append(ratios, float64(quantile(times, .5))/float64(quantile(short, .5)))
	}
	section(fmt.Sprintf("Handover in a line of %d against a line of two", long), fmt.Sprintf("%d times in turns.", len(ratios)), "| waiters | p50 ms | mean ms | p99 ms | |\n|---|---|---|---|---|")
	fmt.Printf("| 2 | %s | %s | %s | |\n", ms(quantile(two, .5)), ms(mean(two)), ms(quantile(two, .99)))
	fmt.Printf("| %d | %s | %s | %s | %.2f × |\n", long, ms(quantile(many, .5)), ms(mean(many)), ms(quantile(many, .99)), median(ratios))
	b.goal(fmt.Sprintf("handover with %d waiters against 2", long), median(ratios), 1.2, " ×")
	return nil
}
