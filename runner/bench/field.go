//go:build linux

package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"time"
)

// contender takes part in a comparison. It has what was measured.
type contender struct {
	name    string
	of      process
	against string // the one that it is compared with
	status  int    // with which it has to end
	walls   []time.Duration
	cpus    []time.Duration
	servers []time.Duration
}

// field collects contenders, and leaves out those that aren't installed.
type field struct {
	b      *bench
	rounds int // or as many as the user asked for
	list   []*contender
}

func (f *field) add(name, against string, env []string, args ...string) *contender {
	of, err := f.b.program(env, args...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: left out:", err)
		return &contender{}
	}
	c := &contender{name: name, of: of, against: against}
	f.list = append(f.list, c)
	return c
}

// addPglead adds pglead and, if there is one, its other build.
func (f *field) addPglead(name, against string, env []string, args ...string) []*contender {
	env = slices.Concat(env, numbered())
	list := []*contender{f.add("**pglead run**"+name, against, env, append([]string{f.b.pglead, "run", "--key", key}, args...)...)}
	if f.b.also != "" {
		list = append(list, f.add("(the other build)"+name, against, env, append([]string{f.b.also, "run", "--key", key}, args...)...))
	}
	return list
}

// addEvicted adds a pglead that was read from the disk page by page.
func (f *field) addEvicted(env []string, args ...string) *contender {
	return f.add("… read from the disk page by page", "C and libpq", slices.Concat(env, numbered()), append([]string{f.b.evicted, "run", "--key", key}, args...)...)
}

// addRefused adds a pglead whose lock is held elsewhere.
func (f *field) addRefused(name, against string, env []string, flags ...string) {
	for _, c := range f.addPglead(name, against, env, slices.Concat(flags, []string{"--wait", "0", "--", "true"})...) {
		c.status, c.of.quiet = 75, true
	}
}

func (f *field) named(name string) *contender {
	for _, c := range f.list {
		if c.name == name {
			return c
		}
	}
	return &contender{}
}

// race makes all contenders run in turns, to and fro, so that none always follows the same
// one. The first rounds are not counted.
func (f *field) race() error {
	const warmUp = 3
	if f.rounds == 0 {
		f.rounds = f.b.rounds
	}
	for round := -warmUp; round < f.rounds; round++ {
		for _, c := range toAndFro(f.list, round) {
			s, err := f.b.time(c.of)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if s.status != c.status {
				return fmt.Errorf("%s: exit status %d, not %d", c.name, s.status, c.status)
			}
			if round >= 0 {
				c.walls, c.cpus, c.servers = append(c.walls, s.wall), append(c.cpus, s.cpu), append(c.servers, s.server)
			}
		}
	}
	return nil
}

// against is the ratio of one's time to another's, by name.
func (f *field) against(name, other string) float64 {
	return ratio(f.named(name).walls, f.named(other).walls)
}

// more is the median of how much longer one takes than another in the same turn, and the
// standard error of that, in milliseconds.
func (f *field) more(name, other string) (extra, uncertain float64) {
	a, b := f.named(name).walls, f.named(other).walls
	var list []float64
	for i := range min(len(a), len(b)) {
		list = append(list, float64(a[i]-b[i])/float64(time.Millisecond))
	}
	if len(list) == 0 {
		return math.NaN(), math.NaN()
	}
	slices.Sort(list)
	// A median's standard error is 1.25 times a mean's, and a quarter of a normal distribution
	// is beyond 0.674 of its deviation on either side.
	deviation := (list[len(list)*3/4] - list[len(list)/4]) / 2 / 0.674
	return median(list), 1.25 * deviation / math.Sqrt(float64(len(list)))
}

// print prints the table. The time at the server is a mean, since its clock
// counts in hundredths of a second.
func (f *field) print(title, note string) {
	section(title, fmt.Sprintf("%d runs each in turns.%s", f.rounds, note), "| | p50 ms | p99 ms | processor ms | server ms | |\n|---|---|---|---|---|---|")
	for _, c := range f.list {
		multiple := ""
		if c.against != "" {
			multiple = fmt.Sprintf("%.2f × %s", f.against(c.name, c.against), c.against)
		}
		fmt.Printf("| %s | %s | %s | %s | %s | %s |\n", c.name, ms(quantile(c.walls, .5)), ms(quantile(c.walls, .99)),
			ms(quantile(c.cpus, .5)), ms(mean(c.servers)), multiple)
	}
}
