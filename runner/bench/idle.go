//go:build linux

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// settling is how long a process may do its one-time work before it is idle.
const settling = 5 * time.Second

// loafer is a process that has nothing to do, and what it costs.
type loafer struct {
	name        string
	pid         int
	isBackend   bool // backends share memory in their own way
	before, cpu time.Duration
	rss, pss    float64
}

// loafers are the processes of holders and waiters.
type loafers struct {
	b       *bench
	w       watcher
	rows    []*loafer
	started []*os.Process
}

// idle measures what a holder and a waiter cost that have nothing to do.
func (b *bench) idle() error {
	w, err := watch(b.server)
	if err != nil {
		return err
	}
	defer w.close()
	l := &loafers{b: b, w: w}
	defer l.end()
	if err := l.addPglead("holder", holding, "--", "sleep", "100000"); err != nil {
		return err
	}
	if err := l.addPglead("waiter", waiting, "--wait", "forever", "--", "true"); err != nil {
		return err
	}
	l.addOther("C and libpq", "floor", "try", "8", "sleep", "100000")
	l.addOther("`psql -c lock -c '\\! …'`", "psql", "-X", "-q", "-o", os.DevNull, "-c", "select pg_advisory_lock(9)", "-c", `\! exec sleep 100000`)
	time.Sleep(min(settling, b.options.idle))
	for _, r := range l.rows {
		r.before = processorTime(r.pid)
	}
	time.Sleep(b.options.idle)
	for _, r := range l.rows {
		r.cpu = processorTime(r.pid) - r.before
		r.rss, r.pss = memory(r.pid)
	}
	l.print()
	return nil
}

// addPglead starts a pglead that holds or waits, and finds its three processes.
func (l *loafers) addPglead(name, from string, args ...string) error {
	p, err := l.b.program(slices.Concat(l.b.unix, numbered()), append([]string{l.b.pglead, "run", "--key", key}, args...)...)
	if err != nil {
		return err
	}
	process, err := p.start(nil, nil)
	if err != nil {
		return err
	}
	l.started = append(l.started, process)
	if err := l.w.count(1, from); err != nil {
		return err
	}
	backend, err := l.w.backend(from)
	if err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond) // for the guard
	l.rows = append(l.rows, &loafer{name: name + ": pglead", pid: process.Pid})
	for _, guard := range children(process.Pid) {
		l.rows = append(l.rows, &loafer{name: name + ": its guard", pid: guard})
	}
	l.rows = append(l.rows, &loafer{name: name + ": at the server", pid: backend, isBackend: true})
	return nil
}

// addOther starts another program, if it is there.
func (l *loafers) addOther(name string, args ...string) {
	p, err := l.b.program(l.b.unix, args...)
	if err != nil {
		return
	}
	if process, err := p.start(nil, nil); err == nil {
		l.started = append(l.started, process)
		l.rows = append(l.rows, &loafer{name: "holder: " + name, pid: process.Pid})
	}
}

// end ends all, the waiters first.
func (l *loafers) end() {
	slices.Reverse(l.started)
	kill(l.started)
	l.b.reapOthers()
}

func (l *loafers) print() {
	b := l.b
	section("Idle", fmt.Sprintf("Over %v.", b.options.idle), "| | RSS MiB | PSS MiB | processor s an hour |\n|---|---|---|---|")
	holder, waiter := 0.0, 0.0
	for _, r := range l.rows {
		hourly := r.cpu.Seconds() * float64(time.Hour) / float64(b.options.idle)
		if r.isBackend {
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
}

// reapOthers kills what dead children have left behind, and waits for it.
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
