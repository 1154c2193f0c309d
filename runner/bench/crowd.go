//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settling is how long a process may do what it does once, before it is idle.
const settling = 5 * time.Second

// idle is what a holder and a waiter cost that have nothing to do.
func (b *bench) idle() error {
	w, err := watch(b.server)
	if err != nil {
		return err
	}
	defer w.close()
	number := slices.Concat(b.unix, numbered())
	type row struct {
		name        string
		pid         int
		isBackend   bool
		before, cpu time.Duration
		rss, pss    float64
	}
	var rows []*row
	var started []*os.Process
	defer func() {
		slices.Reverse(started) // waiters first
		kill(started)
		b.reapOthers()
	}()
	for _, of := range []struct {
		name, from string
		args       []string
	}{
		{"holder", holding, []string{b.pglead, "run", "--key", key, "--", "sleep", "100000"}},
		{"waiter", waiting, []string{b.pglead, "run", "--wait", "forever", "--key", key, "--", "true"}},
	} {
		p, err := b.program(number, of.args...)
		if err != nil {
			return err
		}
		process, err := p.start(nil, nil)
		if err != nil {
			return err
		}
		started = append(started, process)
		if err := w.count(1, of.from); err != nil {
			return err
		}
		backend, err := w.backend(of.from)
		if err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond) // for the guard
		rows = append(rows, &row{name: of.name + ": pglead", pid: process.Pid})
		for _, guard := range children(process.Pid) {
			rows = append(rows, &row{name: of.name + ": its guard", pid: guard})
		}
		rows = append(rows, &row{name: of.name + ": at the server", pid: backend, isBackend: true})
	}
	for _, other := range []struct {
		name string
		args []string
	}{
		{"C and libpq", []string{"floor", "try", "8", "sleep", "100000"}},
		{"`psql -c lock -c '\\! …'`", []string{"psql", "-X", "-q", "-o", os.DevNull, "-c", "select pg_advisory_lock(9)", "-c", `\! exec sleep 100000`}},
	} {
		p, err := b.program(b.unix, other.args...)
		if err != nil {
			continue
		}
		process, err := p.start(nil, nil)
		if err != nil {
			return err
		}
		started = append(started, process)
		rows = append(rows, &row{name: "holder: " + other.name, pid: process.Pid})
	}
	time.Sleep(min(settling, b.options.idle))
	for _, r := range rows {
		r.before = processorTime(r.pid)
	}
	time.Sleep(b.options.idle)
	for _, r := range rows {
		r.cpu = processorTime(r.pid) - r.before
		r.rss, r.pss = memory(r.pid)
	}
	fmt.Printf("\n**Idle**, over %v\n\n| | RSS MiB | PSS MiB | processor s an hour |\n|---|---|---|---|\n", b.options.idle)
	holder, waiter := 0.0, 0.0
	for _, r := range rows {
		hourly := r.cpu.Seconds() * float64(time.Hour) / float64(b.options.idle)
		if r.isBackend { // whose memory is shared in ways of its own
			fmt.Printf("| %s | | | %.2f |\n", r.name, hourly)
		} else {
			fmt.Printf("| %s | %.1f | %.1f | %.2f |\n", r.name, r.rss/(1<<20), r.pss/(1<<20), hourly)
		}
		switch r.name {
		case "holder: pglead":
			b.goal("RSS of an idle holder's pglead", r.rss/(1<<20), 10, " MiB")
			holder = hourly
		case "holder: its guard":
			b.goal("RSS of an idle holder's guard", r.rss/(1<<20), 5, " MiB")
			b.goal("processor time of an idle holder, both processes, an hour", holder+hourly, 1, " s")
		case "waiter: pglead", "waiter: its guard":
			waiter += hourly
		case "waiter: at the server":
			b.goal("processor time of an idle waiter, its processes, an hour", waiter, .5, " s")
			b.goal("processor time of an idle waiter, at the server, an hour", hourly, .5, " s")
		}
	}
	return nil
}

// reapOthers waits for what dead children have left behind, and kills it.
func (b *bench) reapOthers() {
	for _, pid := range children(os.Getpid()) {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if slices.Contains([]string{"sleep", "lease-guard"}, strings.TrimSpace(string(comm))) {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
			reap(pid)
		}
	}
}

// roomFor is a server's max_connections for so many who wait: on one that is
// nearly full they would go.
func roomFor(n int) string { return strconv.Itoa(n*3/2 + 20) }

// crowd is a handover with ever more who wait for the same lock.
func (b *bench) crowd() error {
	at, remove, err := b.startServer(map[string]string{"max_connections": roomFor(b.waiters), "listen_addresses": "", "ssl": "off"})
	if err != nil {
		return err
	}
	defer remove()
	number := slices.Concat(at.unix, numbered())
	var points []point
	fmt.Print("\n**Waiters on one key**, from the start of one command, which ends at once, to that of the next\n\n" +
		"| waiters | pglead p50 ms | p99 ms | C p50 ms | p99 ms | PSS of a waiter and its guard, MiB |\n|---|---|---|---|---|---|\n")
	steps := []int{2, 10, 30, 100, 300, 1000, 3000}
	steps = append(slices.DeleteFunc(steps, func(n int) bool { return n >= b.waiters }), b.waiters)
	for _, n := range steps {
		p := point{waiters: n}
		for range max(1, min(b.rounds, 200)/n) {
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

// holders is what ever more of them cost, each with a key of its own and a command
// that sleeps.
func (b *bench) holders() error {
	at, remove, err := b.startServer(map[string]string{"max_connections": roomFor(b.waiters), "listen_addresses": "", "max_locks_per_transaction": "128"})
	if err != nil {
		return err
	}
	defer remove()
	w, err := watch(at.server)
	if err != nil {
		return err
	}
	defer w.close()
	var started []*os.Process
	defer func() {
		kill(started)
		b.reapOthers()
	}()
	memories := chart{of: "holders of one key each: memory (PSS) of pglead and guard, and of the server's process", unit: "MiB", low: .1, high: 100,
		lines: []line{{name: "pglead and guard", colour: "#c33"}, {name: "at the server", colour: "#36c"}}}
	times := chart{of: "holders of one key each: processor time of each in an hour", unit: "s", low: .01, high: 10,
		lines: []line{{name: "pglead and guard", colour: "#c33"}, {name: "at the server", colour: "#36c"}}}
	idle := min(b.options.idle, 30*time.Second)
	fmt.Printf("\n**Holders** of one key each, over %v\n\n"+
		"| holders | started a second | PSS of pglead and guard, MiB | of the server's process | processor s an hour | at the server |\n|---|---|---|---|---|---|\n", idle)
	steps := []int{1, 10, 100, 1000, 3000}
	steps = append(slices.DeleteFunc(steps, func(n int) bool { return n >= b.waiters }), b.waiters)
	for _, n := range steps {
		began, before := time.Now(), len(started)
		for i := before; i < n; i++ {
			p, err := b.program(slices.Concat(at.unix, numbered()), b.pglead, "run", "--key", strconv.Itoa(i), "--", "sleep", "100000")
			if err != nil {
				return err
			}
			process, err := p.start(nil, nil)
			if err != nil {
				return err
			}
			started = append(started, process)
			if i%20 == 19 { // a server would refuse a rush
				if err := w.awaitSessions(i + 1); err != nil {
					return err
				}
			}
		}
		if err := w.count(n, holders); err != nil {
			return err
		}
		rate := float64(n-before) / time.Since(began).Seconds()
		time.Sleep(min(settling, b.options.idle))
		var ours, servers []int
		for _, process := range started {
			ours = append(append(ours, process.Pid), children(process.Pid)...)
		}
		backends, err := w.ask("SELECT pid FROM " + holders)
		if err != nil {
			return err
		}
		for _, backend := range backends {
			pid, _ := strconv.Atoi(backend)
			servers = append(servers, pid)
		}
		var pss, cpu []float64
		for _, pids := range [][]int{ours, servers} {
			sum := 0.0
			for _, pid := range pids {
				_, one := memory(pid)
				sum += one
			}
			pss = append(pss, sum/float64(n)/(1<<20))
			cpu = append(cpu, -total(pids).Seconds())
		}
		time.Sleep(idle)
		for i, pids := range [][]int{ours, servers} {
			cpu[i] = (cpu[i] + total(pids).Seconds()) / float64(n) * float64(time.Hour) / float64(idle)
		}
		fmt.Printf("| %d | %.0f | %.1f | %.1f | %.2f | %.2f |\n", n, rate, pss[0], pss[1], cpu[0], cpu[1])
		memories.numbers, times.numbers = append(memories.numbers, n), append(times.numbers, n)
		for i := range 2 {
			memories.lines[i].values = append(memories.lines[i].values, pss[i])
			times.lines[i].values = append(times.lines[i].values, cpu[i])
		}
	}
	b.charts = append(b.charts, memories, times)
	return nil
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

// point is of the crowd's growth.
type point struct {
	waiters       int
	pglead, floor []time.Duration
	pss           float64
}

// queue has n wait for a lock, ends its holder's command, and returns the times
// from there to the start of the next command, and between the starts of all, and
// the memory of one who waits.
func (b *bench) queue(at site, n int, env, with []string) (times []time.Duration, pss float64, err error) {
	w, err := watch(at.server)
	if err != nil {
		return nil, 0, err
	}
	defer w.close()
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
	first, err1 := b.program(env, append(slices.Clone(with), "stamp", "end")...)
	p, err2 := b.program(env, append(slices.Clone(with), "stamp")...)
	if err := errors.Join(err1, err2); err != nil {
		return nil, 0, err
	}
	holder, err := first.start(in, out)
	_ = in.Close()
	if err != nil {
		return nil, 0, err
	}
	line := []*os.Process{holder}
	defer func() { kill(line) }() // on an error they would wait for ever
	if err := w.count(1, holding); err != nil {
		return nil, 0, err
	}
	for i := range n {
		process, err := p.start(nil, out)
		if err != nil {
			return nil, 0, err
		}
		line = append(line, process)
		if i%10 == 9 || i == n-1 { // a queue is wanted, not a rush
			if err := w.awaitWaiters(i + 1); err != nil {
				return nil, 0, err
			}
		}
	}
	time.Sleep(time.Second)
	for _, process := range line[1:] {
		for _, pid := range append(children(process.Pid), process.Pid) {
			_, one := memory(pid)
			pss += one / float64(n)
		}
	}
	_ = proceed.Close()
	for _, process := range line {
		state, err := process.Wait()
		if err == nil && !state.Success() {
			err = errors.New(state.String())
		}
		if err != nil {
			return nil, 0, err
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, 0, err
	}
	list, err := stamps(text)
	if err != nil || len(list) != n+1 {
		return nil, 0, fmt.Errorf("%d commands started of %d: %w", len(list)-1, n, err)
	}
	slices.Sort(list)
	for i := range n {
		times = append(times, time.Duration(list[i+1]-list[i]))
	}
	return times, pss, nil
}
