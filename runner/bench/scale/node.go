package main

import (
	"math"
	"time"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/pace"
)

// forever is a wait, or a command, without end.
const forever = time.Duration(math.MaxInt64 / 4)

// node is one `pglead run`, or `lead`, from its start to its end.
type node struct {
	s       *scene
	l       *theLock
	wait    time.Duration
	command func() time.Duration // how long it takes, when it starts
	ended   func()               // may be nil

	began, opening, asked time.Duration
	full, crowded, polls  *pace.Backoff
	refused               bool // the server once had no room for it
	returns               bool // it has waited before
	role                  int  // counts its roles: what it planned in an earlier role is void
	beating               int  // counts the times that its next heartbeat was set
	heardAt               time.Duration
	ticket                int // 0: none yet
	waiter                    // while it is in line
	tenure                    // while it holds the lock
}

// start starts a node now.
func (s *scene) start(l *theLock, wait time.Duration, command func() time.Duration, ended func()) {
	n := &node{s: s, l: l, wait: wait, command: command, ended: ended, began: s.now, full: crowd.FullBackoff(), crowded: crowd.CrowdedBackoff(), polls: crowd.PollBackoff()}
	s.startNode(func() {
		n.opening = s.now
		n.connect()
	})
}

// number stands for the number of the node's session.
func (n *node) number() uint32 { return uint32(n.ticket) }

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

// noRoom is called when a full server has refused the node.
func (n *node) noRoom() {
	n.refused = true
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

// away makes a waiter without a connection come again later.
func (n *node) away() {
	rest := crowd.AwayFor(n.s.between(crowd.NextAway(n.crowded)), n.left())
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

// newRole voids what was planned in the previous role.
func (n *node) newRole() {
	n.role++
	n.busy = false
}

// later does something after a while, if the node then still has its role.
func (n *node) later(d time.Duration, do func()) {
	n.s.after(d, n.unlessVoid(do))
}

func (n *node) unlessVoid(do func()) func() {
	role := n.role
	return func() {
		if role == n.role {
			do()
		}
	}
}

// waits says whether the node is in line, and not the holder.
func (n *node) waits() bool { return n.inLine && n.l.holder != n }

// beatIn sets when the next heartbeat comes.
func (n *node) beatIn(d time.Duration) {
	n.beating++
	count := n.beating
	n.later(d, func() {
		if count == n.beating {
			n.beat()
		}
	})
}

// beat is a heartbeat. One that asks nothing is put off by the answer to any request, and none
// is sent while a request is under way.
func (n *node) beat() {
	every := leasetime.BeatEvery(n.s.lease)
	if n.waits() {
		every = n.beats
	}
	if rest := n.heardAt + every - n.s.now; n.waits() && n.hears && n.watched == nil && rest > 0 {
		n.beatIn(rest)
		return
	}
	n.beatIn(every)
	if n.waits() && n.busy {
		return
	}
	n.s.beats++
	n.s.server.work(n.s.costs.beat, n.unlessVoid(func() {
		n.heardAt = n.s.now
		if n.waits() {
			n.beaten()
		}
	}))
}

// end notes how the node has ended.
func (n *node) end(with *int) {
	*with++
	n.s.last = max(n.s.last, n.s.now)
	if n.ended != nil {
		n.ended()
	}
}

// trial is a try through a pooler. It takes a connection of the pool, and keeps it for the
// command if the lock is granted.
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
				delay = leasetime.DeadAfter(s.lease, 0)
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
		s.after(min(s.between(crowd.NextPoll(n.polls)), n.left()), func() { s.pooled.work(s.costs.poolerTrip, n.trial) })
	})
}
