package lock_test

import (
	"reflect"
	"slices"
	"testing"
	"time"
)

// turnPatience is how long the second in line leaves a lock that has come free to the
// first (line.go). On a busy machine the first may not act within it, and is overtaken.
const turnPatience = 300 * time.Millisecond

// nextOf waits until one of a line is served, and returns its place. Only one that let
// its turn pass may be overtaken.
func nextOf(t *testing.T, line []*contender, released time.Time) (place int) {
	t.Helper()
	var cases []reflect.SelectCase
	for _, c := range line {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c.done)})
	}
	cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(time.After(longest))})
	place, _, _ = reflect.Select(cases)
	if place == len(line) {
		t.Fatalf("nobody is served; the first has said %v", line[0].said())
	}
	if took := line[place].ended.Sub(released); place > 0 && took < turnPatience {
		t.Fatalf("%d were overtaken within %v", place, took)
	}
	if place > 0 {
		t.Logf("the first let its turn of %v pass", turnPatience)
	}
	return place
}

// TestFairness: a line of 20 that never gets shorter. Each is served before those
// that came after it, unless it let its turn pass.
func TestFairness(t *testing.T) {
	handovers := 1000
	if testing.Short() {
		handovers = 100
	}
	server := start(t, nil)
	cfg := leased(config(t, server.DSN("postgres"), exclusive(7)), 15*time.Second)
	h := acquire(t, cfg)
	const n = 20
	var line []*contender
	join := func() {
		line = append(line, contend(t, cfg))
		inLine(t, server, id(7), len(line))
	}
	for range n {
		join()
	}
	overtaken := 0
	for i := range handovers {
		released := time.Now()
		release(t, h)
		h.Close()
		place := nextOf(t, line, released)
		next := line[place]
		h = next.held(t)
		if delayed(next) {
			t.Errorf("handover %d: %v", i, next.said())
		}
		if place > 0 {
			overtaken++
		}
		line = slices.Delete(line, place, place+1)
		join()
	}
	t.Logf("%d handovers in a line of %d: in %d the first let its turn of %v pass", handovers, n, overtaken, turnPatience)
	release(t, h)
	for _, c := range line {
		c.stop()
	}
}
