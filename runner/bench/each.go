//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// listing is a program that goes through all items, several times.
type listing struct {
	name string
	args []string

	took, cpu, server []time.Duration
	peak              float64 // of its memory, in bytes
}

// each measures many items, one lock and command after the other.
func (b *bench) each() error {
	const turns = 10
	n := max(1, b.items/turns)
	list := filepath.Join(b.dir, "items")
	if err := writeItems(list, n); err != nil {
		return err
	}
	section(fmt.Sprintf("%d items", b.items), fmt.Sprintf("`true` for each, in %d turns. The processor time is that of all processes but the server's.", turns),
		"| | ms an item | processor ms | server ms | peak MiB | |\n|---|---|---|---|---|---|")
	for _, of := range []struct {
		flags, workers string
		add            []string
		most           float64
	}{{"", "1", nil, 2}, {" -P 4", "4", []string{"-P", "4"}, 1.2}} {
		pglead := func(program string) []string {
			return slices.Concat([]string{program, "each", "--key", "bench/{}", "-a", list}, of.add, []string{"--", "true"})
		}
		theirs := &listing{name: "`xargs -n 1" + of.flags + "`", args: slices.Concat([]string{"xargs", "-a", list, "-n", "1"}, of.add, []string{"true"})}
		ours := &listing{name: "**pglead each**" + of.flags, args: pglead(b.pglead)}
		floor := &listing{name: "C, with guards" + of.flags, args: []string{"floor_each", of.workers, strconv.Itoa(n), "true"}}
		all := []*listing{theirs, floor, ours}
		if b.also != "" {
			all = append(all, &listing{name: "(the other build)" + of.flags, args: pglead(b.also)})
		}
		for turn := range turns {
			for _, l := range toAndFro(all, turn) {
				if err := b.goThrough(l); err != nil {
					return err
				}
			}
		}
		for _, l := range all {
			l.print(theirs, time.Duration(n))
		}
		b.goal("each"+of.flags+" against xargs -n 1"+of.flags, ratio(ours.took, theirs.took), of.most, " ×")
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

func (l *listing) print(against *listing, n time.Duration) {
	multiple := ""
	if l != against {
		multiple = fmt.Sprintf("%.2f × xargs", ratio(l.took, against.took))
	}
	fmt.Printf("| %s | %s | %s | %s | %.1f | %s |\n", l.name, ms(quantile(l.took, .5)/n), ms(quantile(l.cpu, .5)/n), ms(quantile(l.server, .5)/n), l.peak/(1<<20), multiple)
}

// goThrough runs a program and watches its memory meanwhile.
func (b *bench) goThrough(l *listing) error {
	// As from cron: with a terminal each of our commands has its own guard.
	p, err := b.program(b.unix, append([]string{"setsid"}, l.args...)...)
	if err != nil {
		return err
	}
	atServer, began := b.atServer(), time.Now()
	started, err := p.start(nil, nil)
	if err != nil {
		return err
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
	took := time.Since(began)
	l.peak = max(l.peak, <-peak)
	if err != nil {
		return fmt.Errorf("%s: %w", l.args[0], err)
	}
	server, err := atServer()
	l.took, l.cpu, l.server = append(l.took, took), append(l.cpu, state.UserTime()+state.SystemTime()), append(l.server, server)
	return err
}
