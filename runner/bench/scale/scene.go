package main

import (
	"time"
)

// setup is a server, and the way in which the nodes use it.
type setup struct {
	processors  float64
	connections int // for ordinary roles or, with a pooler, in its pool
	lease       time.Duration
	pooler      bool // between the nodes and the server, for --transaction
	beside      bool // the nodes run on the server's machine
	seed        uint64
}

// connectTimeout is the default of --connect-timeout.
const connectTimeout = 10 * time.Second

// tally counts what has happened.
type tally struct {
	attempts    int // logins that were tried
	refused     int // those of them that were refused, since the server was full
	logins      int // at the server
	ran         int
	held        int // ended with 75
	unreachable int // ended with 69
	xids, words int
	delays      int // lock-delays, for lack of evidence
	looks       int
	wal         float64
	beats       int
	peak        int           // the most sessions at once
	last        time.Duration // when the last node had its answer
}

// scene is a server and its nodes.
type scene struct {
	*world
	setup
	tally
	costs  costs
	server *processors
	pooled *processors // PgBouncer, which has one thread
	open   int
	queue  []func() // nodes that wait for a connection of the pool

	waiters, holders int

	starting int      // how many nodes start now
	toStart  []func() // the starts of those that come after them
}

func newScene(s setup) *scene {
	sc := &scene{world: newWorld(s.seed), setup: s, costs: measured()}
	sc.server = &processors{w: sc.world, number: s.processors}
	sc.pooled = &processors{w: sc.world, number: 1}
	return sc
}

// node does a node's own work. A node on its own machine has a processor to itself. Where
// many share one machine, the work of each takes a random time.
func (s *scene) node(demand time.Duration, then func()) {
	if s.beside {
		s.server.work(s.between(0, 2*demand), then)
		return
	}
	s.after(demand, then)
}

// startNode does the work of a node's start. Where many start on one machine, its system prefers
// processes that wake up, such as those that have logged in, to those that have not begun. So only
// as many start at a time as there are processors: the nodes' own starts slow down the rush.
func (s *scene) startNode(then func()) {
	if !s.beside {
		s.node(s.costs.nodeStart, then)
		return
	}
	if s.starting >= int(s.processors) {
		s.toStart = append(s.toStart, then)
		return
	}
	s.starting++
	s.node(s.costs.nodeCrowded, func() {
		s.starting--
		then()
		if len(s.toStart) > 0 {
			next := s.toStart[0]
			s.toStart = s.toStart[1:]
			s.startNode(next)
		}
	})
}

// enter begins a session, if there is room.
func (s *scene) enter() bool {
	if s.open >= s.connections {
		return false
	}
	s.open++
	s.peak = max(s.peak, s.open)
	return true
}

// leave ends a session. With a pooler the next in its queue gets the connection.
func (s *scene) leave() {
	s.open--
	if len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = s.queue[1:]
		next()
	}
}

// look counts a look, and returns its cost: it goes through the locks of all sessions.
func (s *scene) look() time.Duration {
	s.looks++
	return s.costs.look + time.Duration(s.open)*s.costs.lookEach
}
