package lock_test

import (
	"slices"
	"testing"
	"time"
)

// turnPatience is how long the second in line leaves a lock that has come free to the
// first (line.go). On a busy machine the first may not act within it, and is overtaken.
const turnPatience = 300 * time.Millisecond

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
	served := make(chan *contender, n)
	var line []*contender
	join := func() {
		c := contend(t, cfg)
		line = append(line, c)
		inLine(t, server, id(7), len(line))
		go func() {
			<-c.done
			served <- c
		}()
	}
	for range n {
		join()
	}
	overtaken := 0
	for i := range handovers {
		released := time.Now()
		release(t, h)
		h.Close()
		next := <-served
		h = next.held(t)
		if delayed(next) {
			t.Errorf("handover %d: %v", i, next.said())
		}
		if place := slices.Index(line, next); place > 0 {
			overtaken++
			if took := next.ended.Sub(released); took < turnPatience {
				t.Fatalf("handover %d: %d were overtaken within %v", i, place, took)
			}
		}
		line = slices.DeleteFunc(line, func(c *contender) bool { return c == next })
		join()
	}
	t.Logf("%d handovers in a line of %d: in %d the first let its turn of %v pass", handovers, n, overtaken, turnPatience)
	release(t, h)
	for _, c := range line {
		c.stop()
	}
}
