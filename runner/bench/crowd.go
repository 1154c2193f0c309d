//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// roomFor is the max_connections of a server for n waiters: on a server that is nearly
// full they would give their connections back.
func roomFor(n int) string { return strconv.Itoa(n*3/2 + 20) }

// steps are the numbers that are less than -waiters, and -waiters.
func (b *bench) steps(numbers ...int) []int {
	return append(slices.DeleteFunc(numbers, func(n int) bool { return n >= b.waiters }), b.waiters)
}

// crowd measures a handover with ever more waiters for the same lock.
func (b *bench) crowd() error {
	at, remove, err := b.startServer(map[string]string{"max_connections": roomFor(b.waiters), "listen_addresses": "", "ssl": "off"})
	if err != nil {
		return err
	}
	defer remove()
	number := slices.Concat(at.unix, numbered())
	var points []point
	section("Waiters on one key", "From the start of one command, which ends at once, to that of the next.",
		"| waiters | pglead p50 ms | p99 ms | C p50 ms | p99 ms | PSS of a waiter and its guard, MiB |\n|---|---|---|---|---|---|")
	for _, n := range b.steps(2, 10, 30, 100, 300, 1000, 3000) {
		p := point{waiters: n}
		for range max(1, min(b.rounds, 60)/n) {
			ours, pss, err := b.queue(at, n, number, []string{b.pglead, "run", "--wait", "forever", "--key", key, "--"})
			if err != nil {
				return fmt.Errorf("%d waiters: %w", n, err)
			}
			floor, _, err := b.queue(at, n, at.unix, []string{"floor", "wait", key})
			if err != nil {
				return fmt.Errorf("%d waiters: %w", n, err)
			}
			p.pglead, p.floor, p.pss = append(p.pglead, ours...), append(p.floor, floor...), pss
		}
		fmt.Printf("| %d | %s | %s | %s | %s | %.1f |\n", n, ms(quantile(p.pglead, .5)), ms(quantile(p.pglead, .99)), ms(quantile(p.floor, .5)), ms(quantile(p.floor, .99)), p.pss/(1<<20))
		points = append(points, p)
	}
	least, most := points[0], points[len(points)-1]
	b.goal(fmt.Sprintf("handover's p50 with %d waiters against 2", most.waiters),
		float64(quantile(most.pglead, .5))/float64(quantile(least.pglead, .5)), 2, " ×")
	b.charts = append(b.charts, handoverChart(points))
	return nil
}

func handoverChart(points []point) chart {
	c := chart{of: "waiters on one key: handover", unit: "ms", low: 1, high: 1000, lines: []line{
		{name: "pglead p99", colour: "#c33", dashed: true}, {name: "pglead p50", colour: "#c33"},
		{name: "C p99", colour: "#36c", dashed: true}, {name: "C p50", colour: "#36c"},
	}}
	for _, p := range points {
		c.numbers = append(c.numbers, p.waiters)
		for i, d := range []time.Duration{quantile(p.pglead, .99), quantile(p.pglead, .5), quantile(p.floor, .99), quantile(p.floor, .5)} {
			c.lines[i].values = append(c.lines[i].values, float64(d)/float64(time.Millisecond))
		}
	}
	return c
}

// kill ends processes, one after the other.
func kill(processes []*os.Process) {
	for _, p := range processes {
		_ = p.Kill()
		_, _ = p.Wait()
	}
}

// total is the processor time of several processes.
func total(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		sum += processorTime(pid)
	}
	return sum
}

// shares is the memory (PSS) of several processes.
func shares(pids []int) (sum float64) {
	for _, pid := range pids {
		_, pss := memory(pid)
		sum += pss
	}
	return sum
}

// family is a process with its children.
func family(p *os.Process) []int { return append(children(p.Pid), p.Pid) }

// point is one of the crowd's growth.
type point struct {
	waiters       int
	pglead, floor []time.Duration
	pss           float64
}

// queue makes n wait for a lock, ends its holder's command, and returns the times
// from there to the start of the next command, and between all starts, and
// the memory of one waiter.
func (b *bench) queue(at site, n int, env, with []string) (times []time.Duration, pss float64, err error) {
	file := filepath.Join(b.dir, "stamps")
	out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer out.Close()
	in, proceed, err := os.Pipe()
	if err != nil {
		return nil, 0, err
	}
	defer proceed.Close()
	holder, err1 := b.program(env, append(slices.Clone(with), "stamp", "end")...)
	waiter, err2 := b.program(env, append(slices.Clone(with), "stamp")...)
	if err := errors.Join(err1, err2); err != nil {
		_ = in.Close()
		return nil, 0, err
	}
	first, err := holder.start(in, out)
	_ = in.Close()
	if err != nil {
		return nil, 0, err
	}
	line, err := waiter.lineUp(at, n, out)
	line = append([]*os.Process{first}, line...)
	defer func() { kill(line) }() // on an error they would wait for ever
	if err != nil {
		return nil, 0, err
	}
	for _, process := range line[1:] {
		pss += shares(family(process)) / float64(n)
	}
	_ = proceed.Close()
	for _, process := range line {
		if _, err := succeed(process); err != nil {
			return nil, 0, err
		}
	}
	times, err = between(file, n)
	return times, pss, err
}

// lineUp starts n waiters behind a holder, and returns when all of them have stood for a while.
func (p process) lineUp(at site, n int, out *os.File) (line []*os.Process, err error) {
	w, err := watch(at.server)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.count(1, holding); err != nil {
		return nil, err
	}
	for i := range n {
		process, err := p.start(nil, out)
		if err != nil {
			return line, err
		}
		line = append(line, process)
		if i%10 == 9 || i == n-1 { // a queue is wanted, not a rush
			if err := w.awaitWaiters(i + 1); err != nil {
				return line, err
			}
		}
	}
	time.Sleep(time.Second)
	return line, nil
}

// between are the n intervals between the stamps in a file.
func between(file string, n int) (times []time.Duration, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	list, err := stamps(text)
	if err != nil || len(list) != n+1 {
		return nil, fmt.Errorf("%d commands started of %d: %w", len(list)-1, n, err)
	}
	slices.Sort(list)
	for i := range n {
		times = append(times, time.Duration(list[i+1]-list[i]))
	}
	return times, nil
}
