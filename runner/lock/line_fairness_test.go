package lock_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/lock"
)

// turnPatience is how long the second in line leaves a lock that has come free to the first
// (crowd.Turn). On a busy machine the first may not act within this time, and is then overtaken.
const turnPatience = 300 * time.Millisecond

// serve waits until one waiter of a line has the lock, alone and without a delay. It returns what
// that one holds, and the others. A waiter may be overtaken only if it let its turn pass.
func serve(t *testing.T, line []*contender, released time.Time) (h *lock.Held, others []*contender, overtaken bool) {
	t.Helper()
	var cases []reflect.SelectCase
	for _, c := range line {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(c.done)})
	}
	cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(time.After(longest))})
	place, _, _ := reflect.Select(cases)
	if place == len(line) {
		t.Fatalf("nobody is served; the first has said %v", line[0].said())
	}
	if took := line[place].ended.Sub(released); place > 0 && took < turnPatience {
		t.Fatalf("%d were overtaken within %v", place, took)
	}
	if place > 0 {
		t.Logf("the first let its turn of %v pass", turnPatience)
	}
	next := line[place]
	h = next.held(t)
	if delayed(next) {
		t.Errorf("with %d behind it: %v", len(line)-place-1, next.said())
	}
	others = slices.Delete(line, place, place+1)
	for _, other := range others {
		if !other.waits() {
			t.Fatalf("two are served, with %d in line", len(line))
		}
	}
	return h, others, place > 0
}

// TestFairness: in a line of 20 that never gets shorter each waiter gets the lock before those that
// came after it, unless it let its turn pass.
func TestFairness(t *testing.T) {
	t.Parallel()
	handovers := 300 // fifteen times as many as stand in line
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
	for range handovers {
		released := time.Now()
		release(t, h)
		h.Close()
		var passed bool
		if h, line, passed = serve(t, line, released); passed {
			overtaken++
		}
		join()
	}
	t.Logf("%d handovers in a line of %d: in %d the first let its turn of %v pass", handovers, n, overtaken, turnPatience)
	release(t, h)
	for _, c := range line {
		c.stop()
	}
}
