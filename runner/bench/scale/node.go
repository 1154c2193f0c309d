package main

import (
	"math"
	"time"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// forever is a wait, or a command, without end.
const forever = time.Duration(math.MaxInt64 / 4)

// node is one `pglead run`, or `lead`, from its start to its end.
type node struct {
	s       *scene
	l       *theLock
	wait    time.Duration
	command time.Duration
	ended   func() // may be nil

	began, opening, asked time.Duration
	full, crowded         *pace.Backoff
	polls                 *pace.Backoff
	returns               bool // it has waited before
	evidence              bool // that all earlier commands are dead
	trying                bool
	inLine                bool
	visit                 int // to the line: what was planned in an earlier one is void
	ticket                int
	rank, free            int
	looks                 time.Duration
}

// start starts a node now.
func (s *scene) start(l *theLock, wait, command time.Duration, ended func()) {
	n := &node{s: s, l: l, wait: wait, command: command, ended: ended, began: s.now, full: lock.FullBackoff(), crowded: lock.CrowdedBackoff(), polls: lock.PollBackoff()}
	demand := s.costs.nodeStart
	if s.beside {
		demand = s.costs.nodeCrowded
	}
	s.node(demand, func() {
		n.opening = s.now
		n.connect()
	})
}

func (n *node) left() time.Duration { return n.wait - (n.s.now - n.began) }

func (n *node) connect() {
	s := n.s
	s.attempts++
	if s.pooler {
		s.pooled.work(s.costs.pooler, n.trial)
		return
	}
	if !s.enter() {
		s.refused++
		s.server.work(s.costs.full, n.noRoom)
		return
	}
	n.asked = s.now
	s.server.work(s.costs.login, n.loggedIn)
}

// noRoom is what one does whom a full server has refused.
func (n *node) noRoom() {
	if n.wait > 0 {
		n.away()
		return
	}
	rest := n.s.between(n.full.Halves())
	if n.s.now-n.opening+rest > connectTimeout {
		n.end(&n.s.unreachable)
		return
	}
	n.s.after(rest, n.connect)
}

// away has a waiter without a connection come again later.
func (n *node) away() {
	rest := lock.AwayFor(n.s.between(lock.AwayBounds(n.crowded)), n.left())
	if n.left() <= rest {
		n.end(&n.s.unreachable)
		return
	}
	n.s.after(rest, func() {
		n.opening = n.s.now
		n.connect()
	})
}

func (n *node) loggedIn() {
	n.s.logins++
	switch {
	case n.s.now-n.asked > connectTimeout: // it has given up by now
		n.s.leave()
		if n.wait == 0 {
			n.end(&n.s.unreachable)
			return
		}
		n.away()
	case !n.returns && n.l.holder == nil:
		n.granted(0)
	case n.wait == 0:
		n.s.leave()
		n.end(&n.s.held)
	default:
		n.join()
	}
}

// join takes a ticket, or the old one, and looks twice: before it listens, and after.
func (n *node) join() {
	s := n.s
	n.visit++
	visit := n.visit
	n.returns, n.evidence, n.trying, n.rank, n.free = true, false, false, 0, 0
	if n.ticket == 0 {
		s.made++
		n.ticket = s.made
	}
	s.server.work(s.costs.beat+2*s.look(), func() {
		n.l.enter(n)
		n.inLine = true
		s.change(1, 0)
		n.looked()
	})
	if n.wait < forever {
		s.after(n.left(), func() {
			if n.inLine && visit == n.visit {
				n.leaveLine()
				s.leave()
				n.end(&s.held)
			}
		})
	}
}

func (n *node) leaveLine() {
	n.l.leave(n)
	n.inLine = false
	n.s.change(-1, 0)
}

// looked draws the conclusions from a look.
func (n *node) looked() {
	if !n.inLine {
		return
	}
	s := n.s
	rank := n.l.before(n) + 1
	moved := rank < n.rank || n.rank == 0
	n.rank = rank
	n.free++
	if n.l.holder != nil {
		n.free, n.evidence = 0, false
	}
	if rank > 1 && !lock.MayStay(rank, len(n.l.line), s.connections-s.open, s.connections) {
		n.leaveLine()
		s.leave()
		n.away()
		return
	}
	if rank == 1 && !n.trying {
		n.tryIn(lock.TryEvery)
	}
	n.looks = lock.NextLook(rank, moved, n.looks, s.lease)
	n.during(n.looks, func() { s.server.work(s.look(), n.looked) })
}

// during does something later, if the node is in line then, and has been meanwhile.
func (n *node) during(d time.Duration, do func()) {
	visit := n.visit
	n.s.after(d, func() {
		if n.inLine && visit == n.visit {
			do()
		}
	})
}

// tryIn tries later, as the first in line does again and again.
func (n *node) tryIn(d time.Duration) {
	n.trying = true
	n.during(d, func() {
		n.s.server.work(n.s.costs.beat, func() {
			n.trying = false
			if n.try() || !n.inLine || n.l.line[0] != n {
				return
			}
			n.tryIn(lock.TryEvery)
		})
	})
}

// try takes the lock if it is free.
func (n *node) try() bool {
	if !n.inLine || n.l.holder != nil {
		return false
	}
	delay := session.DeadAfter(n.s.lease, 0)
	if n.evidence {
		delay = 0
	}
	n.granted(delay)
	return true
}

// granted holds the lock, for a while without a command if there has to be a delay.
// Then there is room in line.
func (n *node) granted(delay time.Duration) {
	s := n.s
	n.l.holder = n
	if delay == 0 {
		n.draw()
		return
	}
	s.delays++
	if n.inLine {
		n.leaveLine()
	}
	s.after(delay, n.draw)
}

// draw draws the token, and starts the command.
func (n *node) draw() {
	s := n.s
	s.server.work(s.costs.draw, func() {
		if n.inLine {
			n.leaveLine()
		}
		s.xids++
		s.wal += s.costs.tokenWAL
		n.l.say(false)
		s.change(0, 1)
		s.node(s.costs.nodeRun, func() { s.after(n.command, n.release) })
	})
}

// release says so to the line, whose first then tries, and gives the lock back.
func (n *node) release() {
	s := n.s
	s.server.work(s.costs.release, func() {
		if len(n.l.line) > 0 {
			s.xids++ // a transaction that says something has a number
			n.l.say(true)
			first := n.l.line[0]
			s.server.work(s.costs.beat, func() { first.try() })
		}
		n.l.holder = nil
		s.change(0, -1)
		s.leave()
		n.end(&s.ran)
	})
}

// end is the node's: it has its answer, and what it has left to do.
func (n *node) end(with *int) {
	*with++
	n.s.last = max(n.s.last, n.s.now)
	if n.ended != nil {
		n.ended()
	}
}

// trial is one through a pooler: a connection of the pool is had for it, if it is
// granted for as long as the command runs.
func (n *node) trial() {
	s := n.s
	if !s.enter() {
		s.queue = append(s.queue, n.trial)
		return
	}
	s.server.work(s.costs.pooledTrial, func() {
		switch {
		case n.l.holder == nil:
			delay := time.Duration(0)
			if n.returns {
				delay = session.DeadAfter(s.lease, 0)
			}
			n.granted(delay)
			return
		case n.left() <= 0:
			s.leave()
			n.end(&s.held)
			return
		}
		s.leave()
		n.returns = true
		s.after(min(s.between(lock.PollBounds(n.polls)), n.left()), func() { s.pooled.work(s.costs.poolerTrip, n.trial) })
	})
}
