package main

import (
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/crowd"
)

// inLine is a scene in which the first of so many nodes holds the lock, and the others are in line.
// The first two keep it for a while, the others for an instant.
func inLine(nodes int, first, second time.Duration) (*scene, *theLock) {
	s := newScene(plain(1))
	l := &theLock{s: s}
	s.start(l, 0, lasting(first), nil)
	for i := range nodes - 1 {
		keeps := time.Duration(0)
		if i == 0 {
			keeps = second
		}
		s.after(time.Second+time.Duration(i)*10*time.Millisecond, func() { s.start(l, 3*time.Hour, lasting(keeps), nil) })
	}
	return s, l
}

// The heartbeat of the first in line watches the holder. Real sessions of such waiters took 0.45 s
// of the server's processors an hour (README.md of the benchmark).
func TestHeartbeatOfTheFirst(t *testing.T) {
	busy := func(nodes int) (time.Duration, tally) {
		s, _ := inLine(nodes, 2*time.Hour, 0)
		s.run(10 * time.Second)
		before, so := s.server.busy, s.tally
		s.run(time.Hour + 10*time.Second)
		return s.server.busy - before, s.minus(so)
	}
	alone, _ := busy(1)
	for i := range crowd.MostWatchers {
		nodes := i + 2
		with, did := busy(nodes)
		within(t, "seconds an hour of one in line", ((with - alone) / time.Duration(nodes-1)).Seconds(), .4, .55)
		looks := 60 + 120*i // the first looks every four leases, the others every two
		within(t, "looks an hour of all in line", did.looks, looks-5, looks+5)
	}
}

// Only the first in line listen. When they are gone, the holder calls, and keeps the lock until
// one of the others listens, so that nobody waits out a lock-delay.
func TestTheDormantAreCalled(t *testing.T) {
	const nodes = 60
	for _, gone := range []int{0, crowd.MostListeners} {
		s, l := inLine(nodes, 10*time.Second, time.Minute)
		s.run(30 * time.Second)
		second := l.holder
		s.run(second.since + time.Minute)
		if marked := l.marked(nil); len(l.line) != nodes-2 || marked != crowd.MostListeners {
			t.Fatalf("%d in line, %d listen", len(l.line), marked)
		}
		for _, n := range slices.Clone(l.line[:gone]) {
			n.leaveLine()
			s.leave()
		}
		began := s.now
		for ; l.holder == second; s.run(s.now + time.Millisecond) {
			s.after(time.Millisecond, func() {})
		}
		const atOnce = 50 * time.Millisecond // without a call, which a dormant waiter hears by its next heartbeat
		if took := s.now - began; (took < atOnce) != (gone == 0) || took > atOnce+crowd.SomeDormant.Patience(s.lease) {
			t.Errorf("with %d gone, the holder ends after %v", gone, took)
		}
		s.run(time.Hour)
		if s.ran != nodes-gone || s.delays != 0 || l.calls != 0 || s.open != 0 {
			t.Errorf("with %d gone, %d ran, %d lock-delays, %d call, %d sessions", gone, s.ran, s.delays, l.calls, s.open)
		}
	}
}

// A head of the line that comes back to a free lock, and has heard nothing, leaves it to those that
// listen for one turn.
func TestTheHeadKnowsLess(t *testing.T) {
	for _, others := range []bool{true, false} {
		s, l := inLine(3, time.Hour, 0)
		s.run(30 * time.Second)
		first, second := l.line[0], l.line[1]
		first.leaveLine()
		if !others {
			second.leaveLine()
		}
		l.holder.newRole()
		l.holder = nil
		first.join()
		began := s.now
		s.run(began + crowd.TurnPatience/2)
		if tried := l.holder == first; tried == others {
			t.Errorf("others %v, and the head has taken the lock: %v", others, tried)
		}
		s.run(began + 2*crowd.TurnPatience)
		if l.holder != first || s.delays != 1 {
			t.Errorf("others %v: after its turn the head has the lock: %v, %d lock-delays", others, l.holder == first, s.delays)
		}
	}
}
