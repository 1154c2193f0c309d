//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sample is one run of one program.
type sample struct {
	wall   time.Duration
	cpu    time.Duration // of the program and all that it started
	server time.Duration // of its session at the server, to the clock's tick
	status int
}

// process is a program to run, with the path of its file.
type process struct {
	path  string
	args  []string
	env   []string
	quiet bool // its standard error does not matter
}

// program looks up a program.
func (b *bench) program(env []string, args ...string) (process, error) {
	path := args[0]
	if !strings.Contains(path, "/") {
		var err error
		if path, err = b.lookPath(path); err != nil {
			return process{}, err
		}
	}
	return process{path: path, args: args, env: env}, nil
}

func (b *bench) lookPath(name string) (string, error) {
	for _, dir := range strings.Split(b.path, string(os.PathListSeparator)) {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find %s: %w", name, exec.ErrNotFound)
}

func (b *bench) installed(name string) bool {
	_, err := b.lookPath(name)
	return err == nil
}

// start starts a program. A nil file is /dev/null.
func (p process) start(stdin, stdout *os.File, more ...*os.File) (*os.Process, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	if stdin == nil {
		stdin = null
	}
	if stdout == nil {
		stdout = null
	}
	stderr := os.Stderr
	if p.quiet {
		stderr = null
	}
	return os.StartProcess(p.path, p.args, &os.ProcAttr{Env: p.env, Files: append([]*os.File{stdin, stdout, stderr}, more...)})
}

// run runs a program that has to succeed.
func (p process) run() error {
	started, err := p.start(nil, nil)
	if err == nil {
		_, err = succeed(started)
	}
	return err
}

// succeed waits for a process that has to succeed.
func succeed(p *os.Process) (*os.ProcessState, error) {
	state, err := p.Wait()
	if err == nil && !state.Success() {
		err = fmt.Errorf("process %d: %v", p.Pid, state)
	}
	return state, err
}

// output is the output of a program that has to succeed.
func (p process) output() (string, error) {
	cmd := exec.Cmd{Path: p.path, Args: p.args, Env: p.env}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(p.args, " "), err, out)
	}
	return string(out), err
}

// time runs a program to its end and beyond, until all that it has left behind, even
// at the server, is gone.
func (b *bench) time(p process) (sample, error) {
	var s sample
	before, atServer := children(os.Getpid()), b.atServer()
	began := time.Now()
	started, err := p.start(nil, nil)
	if err != nil {
		return s, err
	}
	state, err := started.Wait()
	if err != nil {
		return s, err
	}
	s.wall = time.Since(began)
	s.cpu = state.UserTime() + state.SystemTime()
	s.status = state.ExitCode()
	for _, pid := range children(os.Getpid()) {
		if !slices.Contains(before, pid) {
			s.cpu += reap(pid)
		}
	}
	s.server, err = atServer()
	return s, err
}

// atServer starts to measure what the server spends on sessions that begin and end from
// now on. The function that it returns waits for their end.
func (b *bench) atServer() func() (time.Duration, error) {
	base, before := len(children(b.server.PID())), ticks(b.server.PID())
	return func() (time.Duration, error) {
		for range 10000 {
			if len(children(b.server.PID())) <= base {
				return ticks(b.server.PID()) - before, nil
			}
			time.Sleep(100 * time.Microsecond)
		}
		return 0, errors.New("the session does not end")
	}
}

// reap waits for an orphan and returns the time that it took.
func reap(pid int) time.Duration {
	var usage unix.Rusage
	if _, err := unix.Wait4(pid, nil, 0, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func children(pid int) []int {
	var pids []int
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))
		for _, field := range strings.Fields(string(list)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// ticks is the processor time of a process's dead children (proc(5)).
func ticks(pid int) time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(after)
	if len(fields) < 15 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[13], 10, 64)
	system, _ := strconv.ParseInt(fields[14], 10, 64)
	const tick = 10 * time.Millisecond
	return time.Duration(user+system) * tick
}

// processorTime is what a living process has used so far, to the nanosecond.
func processorTime(pid int) time.Duration {
	var sum time.Duration
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		schedstat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		used, _, _ := strings.Cut(string(schedstat), " ")
		ns, _ := strconv.ParseInt(used, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}

// memory is a process's resident set, and its share of that, in bytes.
func memory(pid int) (rss, pss float64) {
	rollup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(rollup)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "Rss:":
			rss = kib * 1024
		case "Pss:":
			pss = kib * 1024
		}
	}
	return rss, pss
}

func quantile(list []time.Duration, q float64) time.Duration {
	if len(list) == 0 {
		return 0
	}
	list = slices.Sorted(slices.Values(list))
	return list[min(len(list)-1, int(q*float64(len(list))))]
}

func mean(list []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range list {
		sum += d
	}
	return sum / time.Duration(max(1, len(list)))
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Microseconds())/1000) }

// ratio is the median of the ratios of what was measured in turns, so that it
// makes no difference if the machine gets slower.
func ratio(a, b []time.Duration) float64 {
	var ratios []float64
	for i := range min(len(a), len(b)) {
		ratios = append(ratios, float64(a[i])/float64(max(1, b[i])))
	}
	return median(ratios)
}
