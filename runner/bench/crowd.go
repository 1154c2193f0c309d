//go:build linux

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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
		name, condition string
		args            []string
	}{
		{"holder", "granted", []string{b.pglead, "run", "--key", key, "--", "sleep", "100000"}},
		{"waiter", "NOT granted", []string{b.pglead, "run", "--wait", "forever", "--key", key, "--", "true"}},
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
		if err := w.await(of.condition, 1); err != nil {
			return err
		}
		values, err := w.ask("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = " + key + " AND " + of.condition)
		if err != nil {
			return err
		}
		backend, _ := strconv.Atoi(values[0])
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
	holder := 0.0
	for _, r := range rows {
		hourly := r.cpu.Seconds() * float64(time.Hour) / float64(b.options.idle)
		if r.isBackend { // whose memory is shared in ways of its own
			fmt.Printf("| %s | | | %.2f |\n", r.name, hourly)
			continue
		}
		fmt.Printf("| %s | %.1f | %.1f | %.2f |\n", r.name, r.rss/(1<<20), r.pss/(1<<20), hourly)
		switch r.name {
		case "holder: pglead":
			b.goal("RSS of an idle holder's pglead", r.rss/(1<<20), 10, " MiB")
			holder = hourly
		case "holder: its guard":
			b.goal("RSS of an idle holder's guard", r.rss/(1<<20), 5, " MiB")
			b.goal("processor time of an idle holder, both processes, an hour", holder+hourly, 1, " s")
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

// crowd is a handover with ever more who wait for the same lock.
func (b *bench) crowd() error {
	at, remove, err := b.startServer(map[string]string{"max_connections": strconv.Itoa(b.waiters + 20), "ssl": "off"})
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
	at, remove, err := b.startServer(map[string]string{"max_connections": strconv.Itoa(b.waiters + 20), "max_locks_per_transaction": "128"})
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
		if err := w.count(n, "pg_locks WHERE locktype = 'advisory' AND granted"); err != nil {
			return err
		}
		rate := float64(n-before) / time.Since(began).Seconds()
		time.Sleep(min(settling, b.options.idle))
		var ours, servers []int
		for _, process := range started {
			ours = append(append(ours, process.Pid), children(process.Pid)...)
		}
		backends, err := w.ask("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")
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

// queue has n wait for a lock, frees it, and returns the times between the starts
// of their commands, and the memory of one.
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
	if _, err := w.ask("SELECT pg_advisory_lock(" + key + ")"); err != nil {
		return nil, 0, err
	}
	p, err := b.program(env, append(slices.Clone(with), "stamp")...)
	if err != nil {
		return nil, 0, err
	}
	var waiting []*os.Process
	defer func() { kill(waiting) }() // on an error they would wait for ever
	for i := range n {
		process, err := p.start(nil, out)
		if err != nil {
			return nil, 0, err
		}
		waiting = append(waiting, process)
		if i%10 == 9 || i == n-1 { // a queue is wanted, not a rush
			if err := w.count(i+1, "pg_locks WHERE locktype = 'advisory' AND NOT granted"); err != nil {
				return nil, 0, err
			}
		}
	}
	time.Sleep(time.Second)
	for _, process := range waiting {
		for _, pid := range append(children(process.Pid), process.Pid) {
			_, one := memory(pid)
			pss += one / float64(n)
		}
	}
	for _, sql := range []string{
		"SELECT pg_notify('pglead.1." + key + "', 'clean 0 15000 0')", // as a pglead would, that nobody waits out the lock-delay
		"SELECT pg_advisory_unlock(" + key + ")",
	} {
		if _, err := w.ask(sql); err != nil {
			return nil, 0, err
		}
	}
	for _, process := range waiting {
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
	if err != nil || len(list) != n {
		return nil, 0, fmt.Errorf("%d commands started of %d: %w", len(list), n, err)
	}
	slices.Sort(list)
	for i := range n - 1 {
		times = append(times, time.Duration(list[i+1]-list[i]))
	}
	return times, pss, nil
}

// herd has many nodes fire at the same instant at a server that has room for
// few of them.
func (b *bench) herd() error {
	number := slices.Concat(b.unix, numbered())
	fmt.Printf("\n**%d nodes at the same instant**, max_connections = 100. The one that gets the lock keeps it until all others have their answer; in the last row each runs `true` in its turn\n\n"+
		"| | ran | held elsewhere (75) | no connection (69) | other | first answer s | p50 s | last s |\n|---|---|---|---|---|---|---|---|\n", b.nodes)
	for _, of := range []struct {
		name string
		env  []string
		args []string
		all  bool
	}{
		{"C and libpq", b.unix, []string{"floor", "try", key, "stamp", "end"}, false},
		{"**pglead run** --wait 0", number, []string{b.pglead, "run", "--key", key, "--wait", "0", "--", "stamp", "end"}, false},
		{"**pglead run** --wait 5m", number, []string{b.pglead, "run", "--key", key, "--wait", "5m", "--", "true"}, true},
	} {
		statuses, times, err := b.fire(of.env, of.args, of.all)
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		ran, held, unreachable := statuses[0], statuses[75], statuses[69]
		other := b.nodes - ran - held - unreachable
		fmt.Printf("| %s | %d | %d | %d | %d | %.2f | %.2f | %.2f |\n", of.name, ran, held, unreachable, other,
			quantile(times, 0).Seconds(), quantile(times, .5).Seconds(), quantile(times, 1).Seconds())
		if strings.HasPrefix(of.name, "**pglead") {
			b.goal(fmt.Sprintf("nodes without an answer, of %d at once, %s", b.nodes, strings.Fields(of.name)[len(strings.Fields(of.name))-2]+" "+strings.Fields(of.name)[len(strings.Fields(of.name))-1]), float64(other), 0, "")
		}
	}
	return nil
}

// fire has all nodes stand at a gate, opens it, and counts how they end. Unless
// all are to run, the winner's command ends when all others have.
func (b *bench) fire(env, args []string, all bool) (statuses map[int]int, times []time.Duration, err error) {
	gate, open, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	in, proceed, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	shell, err := b.program(env, append([]string{"sh", "-c", `read x <&3; exec "$@" 3<&-`, "node"}, args...)...)
	if err != nil {
		return nil, nil, err
	}
	shell.quiet = true
	var nodes []*os.Process
	for range b.nodes {
		node, err := shell.start(in, nil, gate)
		if err != nil {
			return nil, nil, err
		}
		nodes = append(nodes, node)
	}
	_ = gate.Close()
	_ = in.Close()
	time.Sleep(time.Second)
	var mu sync.Mutex
	var waits sync.WaitGroup
	statuses = map[int]int{}
	began := time.Now()
	for _, node := range nodes {
		waits.Go(func() {
			state, err := node.Wait()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				return
			}
			statuses[state.ExitCode()]++
			times = append(times, time.Since(began))
			ended := 0
			for n := range maps.Values(statuses) {
				ended += n
			}
			if ended == b.nodes-1 && !all {
				_ = proceed.Close()
			}
		})
	}
	_ = open.Close()
	waits.Wait()
	if all {
		_ = proceed.Close()
	}
	return statuses, times, nil
}
