//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// listing is a program that has gone through all items.
type listing struct {
	took, cpu time.Duration
	peak      float64 // of its memory, in bytes
}

// each is many items, one lock and one command after the other.
func (b *bench) each() error {
	list := filepath.Join(b.dir, "items")
	if err := writeItems(list, b.items); err != nil {
		return err
	}
	section(fmt.Sprintf("%d items", b.items), "`true` for each.", "| | s | ms an item | processor ms an item | peak MiB | |\n|---|---|---|---|---|---|")
	each := []string{b.pglead, "each", "--key", "bench/{}", "-a", list}
	for _, of := range []struct {
		flags  string
		theirs []string
		ours   []string
		most   float64
	}{
		{"", []string{"xargs", "-a", list, "-n", "1", "true"}, append(each[:len(each):len(each)], "--", "true"), 2},
		{" -P 4", []string{"xargs", "-a", list, "-n", "1", "-P", "4", "true"}, append(each[:len(each):len(each)], "-P", "4", "--", "true"), 1.2},
	} {
		theirs, err := b.goThrough(of.theirs)
		if err != nil {
			return err
		}
		ours, err := b.goThrough(of.ours)
		if err != nil {
			return err
		}
		multiple := float64(ours.took) / float64(theirs.took)
		b.printListing("`xargs -n 1"+of.flags+"`", theirs, "")
		b.printListing("**pglead each**"+of.flags, ours, fmt.Sprintf("%.2f × xargs", multiple))
		b.goal("each"+of.flags+" against xargs -n 1"+of.flags, multiple, of.most, " ×")
	}
	return nil
}

func writeItems(file string, n int) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	for i := range n {
		fmt.Fprintln(out, i)
	}
	return out.Close()
}

func (b *bench) printListing(name string, l listing, multiple string) {
	n := time.Duration(b.items)
	fmt.Printf("| %s | %.1f | %s | %s | %.1f | %s |\n", name, l.took.Seconds(), ms(l.took/n), ms(l.cpu/n), l.peak/(1<<20), multiple)
}

// goThrough runs a program and looks at its memory all the while.
func (b *bench) goThrough(args []string) (l listing, err error) {
	// As from cron: with a terminal each command of ours has a guard of its own.
	p, err := b.program(b.unix, append([]string{"setsid"}, args...)...)
	if err != nil {
		return l, err
	}
	began := time.Now()
	started, err := p.start(nil, nil)
	if err != nil {
		return l, err
	}
	peak, done := make(chan float64), make(chan struct{})
	go func() {
		most := 0.0
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
	state, err := succeed(started)
	close(done)
	l = listing{took: time.Since(began), peak: <-peak}
	if err != nil {
		return l, fmt.Errorf("%s: %w", args[0], err)
	}
	l.cpu = state.UserTime() + state.SystemTime()
	return l, nil
}
