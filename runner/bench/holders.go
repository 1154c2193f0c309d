//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

// holderStep is what each of n holders costs.
type holderStep struct {
	n        int
	rate     float64    // at which they started, a second
	pss, cpu [2]float64 // of pglead and guard, and of the server's process: MiB, seconds an hour
}

// holders measures what ever more of them cost, each with its own key and a command
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
	idle := min(b.options.idle, 30*time.Second)
	section("Holders", fmt.Sprintf("Of one key each, over %v.", idle),
		"| holders | started a second | PSS of pglead and guard, MiB | of the server's process | processor s an hour | at the server |\n|---|---|---|---|---|---|")
	var steps []holderStep
	for _, n := range b.steps(1, 10, 100, 1000, 3000) {
		s := holderStep{n: n}
		if started, s.rate, err = b.startHolders(at, w, started, n); err != nil {
			return err
		}
		time.Sleep(min(settling, b.options.idle))
		if err := s.measure(w, started, idle); err != nil {
			return err
		}
		fmt.Printf("| %d | %.0f | %.1f | %.1f | %.2f | %.2f |\n", n, s.rate, s.pss[0], s.pss[1], s.cpu[0], s.cpu[1])
		steps = append(steps, s)
	}
	b.charts = append(b.charts, holderCharts(steps)...)
	return nil
}

// startHolders starts more holders, until there are n.
func (b *bench) startHolders(at site, w watcher, started []*os.Process, n int) (all []*os.Process, rate float64, err error) {
	began, before := time.Now(), len(started)
	for i := before; i < n; i++ {
		p, err := b.program(slices.Concat(at.unix, numbered()), b.pglead, "run", "--key", strconv.Itoa(i), "--", "sleep", "100000")
		if err != nil {
			return started, 0, err
		}
		process, err := p.start(nil, nil)
		if err != nil {
			return started, 0, err
		}
		started = append(started, process)
		if i%20 == 19 { // a server would refuse a rush
			if err := w.awaitSessions(i + 1); err != nil {
				return started, 0, err
			}
		}
	}
	if err := w.count(n, holders); err != nil {
		return started, 0, err
	}
	return started, float64(n-before) / time.Since(began).Seconds(), nil
}

// measure measures all of them for a while.
func (s *holderStep) measure(w watcher, started []*os.Process, idle time.Duration) error {
	var ours, servers []int
	for _, process := range started {
		ours = append(ours, family(process)...)
	}
	backends, err := w.ask("SELECT pid FROM " + holders)
	if err != nil {
		return err
	}
	for _, backend := range backends {
		pid, _ := strconv.Atoi(backend)
		servers = append(servers, pid)
	}
	var before [2]time.Duration
	for i, pids := range [][]int{ours, servers} {
		s.pss[i], before[i] = shares(pids)/float64(s.n)/(1<<20), total(pids)
	}
	time.Sleep(idle)
	for i, pids := range [][]int{ours, servers} {
		s.cpu[i] = (total(pids) - before[i]).Seconds() / float64(s.n) * float64(time.Hour) / float64(idle)
	}
	return nil
}

func holderCharts(steps []holderStep) []chart {
	memories := chart{of: "holders of one key each: memory (PSS) of pglead and guard, and of the server's process", unit: "MiB", low: .1, high: 100,
		lines: []line{{name: "pglead and guard", colour: "#c33"}, {name: "at the server", colour: "#36c"}}}
	times := chart{of: "holders of one key each: processor time of each in an hour", unit: "s", low: .01, high: 10,
		lines: []line{{name: "pglead and guard", colour: "#c33"}, {name: "at the server", colour: "#36c"}}}
	for _, s := range steps {
		memories.numbers, times.numbers = append(memories.numbers, s.n), append(times.numbers, s.n)
		for i := range 2 {
			memories.lines[i].values = append(memories.lines[i].values, s.pss[i])
			times.lines[i].values = append(times.lines[i].values, s.cpu[i])
		}
	}
	return []chart{memories, times}
}
