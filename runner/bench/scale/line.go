package main

import "github.com/pglead/pglead/runner/crowd"

// theLock is a lock with its line, which is in the order of tickets.
type theLock struct {
	s      *scene
	holder *node
	line   []*node
	calls  int // how many nodes call the dormant waiters
}

// enter puts a node into the line.
func (l *theLock) enter(n *node) {
	l.s.waiters++
	i := l.before(n)
	l.line = append(l.line, nil)
	copy(l.line[i+1:], l.line[i:])
	l.line[i] = n
}

// before counts those with a lower ticket.
func (l *theLock) before(n *node) int {
	low, high := 0, len(l.line)
	for low < high {
		if middle := (low + high) / 2; l.line[middle].ticket < n.ticket {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

func (l *theLock) leave(n *node) {
	l.s.waiters--
	i := l.before(n)
	l.line = append(l.line[:i], l.line[i+1:]...)
}

// marked counts those in line, besides one, that are marked as listeners.
func (l *theLock) marked(besides *node) (number int) {
	for _, n := range l.line {
		if n.marked && n != besides {
			number++
		}
	}
	return number
}

// someoneListens tells a calling holder what it wants to know: whether one of the first in line
// is marked, and whether anybody is there.
func (l *theLock) someoneListens() (listens, anybody bool) {
	for _, n := range l.line[:min(len(l.line), crowd.MostListeners)] {
		listens = listens || n.marked
	}
	return listens, len(l.line) > 0
}

// word is an announcement: a start or, if it is clean, an end.
type word struct {
	from          *node
	clean         bool
	coversEarlier bool
	to            *node // the waiter that should be next
}

// say announces something if a waiter is marked, and returns whether it did. A clean end names
// the first marked waiter. Each listening session is woken.
func (l *theLock) say(w word) bool {
	var hearers []*node
	for _, n := range l.line {
		if n == l.holder {
			continue
		}
		if n.hears {
			hearers = append(hearers, n)
		}
		if n.marked && w.to == nil {
			w.to = n
		}
	}
	if w.to == nil {
		return false
	}
	l.s.words++
	l.s.wal += l.s.costs.wordWAL
	for _, n := range hearers {
		l.s.server.work(l.s.costs.wake, nil)
		n.hear(w)
	}
	return true
}
