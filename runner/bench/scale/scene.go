package main

import (
	"time"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// setup is a server, and how it is used.
type setup struct {
	processors  float64
	connections int // that ordinary roles can have; those of the pool, with a pooler
	lease       time.Duration
	pooler      bool // in between, for --transaction
	beside      bool // the nodes run on the server's own processors
	seed        uint64
}

// connectTimeout is what --connect-timeout is by default.
const connectTimeout = 10 * time.Second

// tally is what has come to pass.
type tally struct {
	attempts    int // to log in
	refused     int // of them, for want of room
	logins      int // at the server
	ran         int
	held        int // ended with 75
	unreachable int // ended with 69
	xids, words int
	delays      int // that were waited for want of evidence
	looks       int
	wal         float64
	beats       float64
	peak        int           // sessions at once
	last        time.Duration // when the last node had its answer
}

// scene is a server among nodes.
type scene struct {
	*world
	setup
	tally
	costs  costs
	server *processors
	pooled *processors // PgBouncer, which has one thread
	open   int
	queue  []func() // those for whom the pool has no connection

	waiters, holders int
	changed          time.Duration // when these did last
}

func newScene(s setup) *scene {
	sc := &scene{world: newWorld(s.seed), setup: s, costs: measured()}
	sc.server = &processors{w: sc.world, number: s.processors, taken: sc.standing}
	sc.pooled = &processors{w: sc.world, number: 1, taken: func() float64 { return 0 }}
	return sc
}

// standing is how many processors the heartbeats take.
func (s *scene) standing() float64 {
	each := s.costs.beat.Seconds()
	return each * (float64(s.waiters)/lock.WaiterBeat(s.lease).Seconds() + float64(s.holders)/session.BeatEvery(s.lease).Seconds())
}

// node lets a node work: on a machine of its own it has a processor. Of many that
// share one not all get as far in the same time: without that a thousand that start at
// once would all log in at once, too, which real ones don't.
func (s *scene) node(demand time.Duration, then func()) {
	if s.beside {
		s.server.work(s.between(0, 2*demand), then)
		return
	}
	s.after(demand, then)
}

// enter is a session's begin, if there is room.
func (s *scene) enter() bool {
	if s.open >= s.connections {
		return false
	}
	s.open++
	s.peak = max(s.peak, s.open)
	return true
}

// leave is its end. Whoever waits for the pool comes next.
func (s *scene) leave() {
	s.open--
	if len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		next()
	}
}

// look is what one costs: it goes through the locks of all sessions.
func (s *scene) look() time.Duration {
	s.looks++
	return s.costs.look + time.Duration(s.open)*s.costs.lookEach
}

// change counts waiters and holders, and the heartbeats of those that there were up to now.
func (s *scene) change(waiters, holders int) {
	passed := (s.now - s.changed).Seconds()
	s.beats += passed * (float64(s.waiters)/lock.WaiterBeat(s.lease).Seconds() + float64(s.holders)/session.BeatEvery(s.lease).Seconds())
	s.changed = s.now
	s.waiters += waiters
	s.holders += holders
}

// theLock is one, and its line in the order of tickets.
type theLock struct {
	s      *scene
	holder *node
	line   []*node
}

// enter puts a node into the line.
func (l *theLock) enter(n *node) {
	i := l.before(n)
	l.line = append(l.line, nil)
	copy(l.line[i+1:], l.line[i:])
	l.line[i] = n
}

// before counts those with a ticket before this one's.
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
	i := l.before(n)
	l.line = append(l.line[:i], l.line[i+1:]...)
}

// say is an announcement, if there is anyone in line: it wakes those who listen, and
// is evidence for them or ends it.
func (l *theLock) say(clean bool) {
	if len(l.line) == 0 {
		return
	}
	l.s.words++
	l.s.wal += l.s.costs.wordWAL
	first := l.line[:min(len(l.line), lock.MostListeners)]
	l.s.server.work(time.Duration(len(first))*l.s.costs.wake, nil)
	for _, n := range first {
		n.evidence = clean
	}
}
