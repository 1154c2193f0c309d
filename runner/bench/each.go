//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// lister is one who works on a list, and what that has come to.
type lister struct {
	name      string
	args      []string
	took, cpu time.Duration
	peak      float64 // bytes
}

// each is many items, one lock and one command after the other, and four at a time.
func (b *bench) each() error {
	const turns = 5
	list := filepath.Join(b.dir, "items")
	out, err := os.Create(list)
	if err != nil {
		return err
	}
	items := max(1, b.items/turns)
	for i := range items {
		fmt.Fprintln(out, i)
	}
	if err := out.Close(); err != nil {
		return err
	}
	// As from cron: with a terminal each command has a guard of its own.
	listers := []*lister{
		{name: "`xargs -n 1`", args: []string{"setsid", "xargs", "-a", list, "-n", "1", "true"}},
		{name: "**pglead each**", args: []string{"setsid", b.pglead, "each", "--key", "bench/{}", "-a", list, "--", "true"}},
		{name: "`xargs -n 1 -P 4`", args: []string{"setsid", "xargs", "-a", list, "-n", "1", "-P", "4", "true"}},
		{name: "**pglead each -P 4**", args: []string{"setsid", b.pglead, "each", "--key", "bench/{}", "-a", list, "-P", "4", "--", "true"}},
	}
	for range turns {
		for _, l := range listers {
			if err := b.list(l); err != nil {
				return err
			}
		}
	}
	fmt.Printf("\n**%d items**, `true` for each, %d times in turns, without a terminal\n\n| | ms an item | processor ms an item | peak MiB | |\n|---|---|---|---|---|\n", items, turns)
	all := time.Duration(items * turns)
	for i, l := range listers {
		multiple := ""
		if i%2 == 1 {
			multiple = fmt.Sprintf("%.2f × %s", l.times(listers[i-1]), listers[i-1].name)
		}
		fmt.Printf("| %s | %s | %s | %.1f | %s |\n", l.name, ms(l.took/all), ms(l.cpu/all), l.peak/(1<<20), multiple)
	}
	b.goal("each against `xargs -n 1`", listers[1].times(listers[0]), 2, " ×")
	b.goal("each -P 4 against `xargs -n 1 -P 4`", listers[3].times(listers[2]), 1.2, " ×")
	return nil
}

func (l *lister) times(other *lister) float64 { return float64(l.took) / float64(other.took) }

// list has one work on the list.
func (b *bench) list(l *lister) error {
	p, err := b.program(b.unix, l.args...)
	if err != nil {
		return err
	}
	began := time.Now()
	started, err := p.start(nil, nil)
	if err != nil {
		return err
	}
	done, peak := make(chan struct{}), make(chan float64)
	go func() {
		var most float64
		for {
			select {
			case <-done:
				peak <- most
				return
			case <-time.After(50 * time.Millisecond):
				rss, _ := memory(started.Pid)
				most = max(most, rss)
			}
		}
	}()
	state, err := started.Wait()
	l.took += time.Since(began)
	close(done)
	l.peak = max(l.peak, <-peak)
	if err != nil {
		return err
	}
	if !state.Success() {
		return errors.New(l.name + ": " + state.String())
	}
	l.cpu += state.UserTime() + state.SystemTime()
	return nil
}
