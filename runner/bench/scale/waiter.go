package main

import (
	"time"

	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/leasetime"
)

// A waiter follows the rules of package crowd (Turn says when it tries and looks) and of package
// lock, where their reasons are: line_dormant.go has who listens, and line_watch.go what the
// heartbeat of the first few is for. Here all holders show themselves, all sessions have one role,
// and nobody dies.

// knowledge is what a waiter knows of the holders since it listens.
type knowledge int

const (
	nothing knowledge = iota
	running           // somebody has started, or holds the lock
	over              // all that it knows of have ended
)

// waiter is a node's state while it is in line.
type waiter struct {
	inLine   bool
	hears    bool // it listens
	marked   bool // others know that
	unmarked bool // it gave a mark back: being named does not count
	knows    knowledge
	covers   bool   // the last announced end covered all earlier holders, too
	mail     []word // not yet acted on

	busy    bool // a request of its own is under way
	turn    crowd.Turn
	alarms  int   // counts how often the next step was planned
	watched *node // the holder that its heartbeat watches
	beats   time.Duration
	calling bool
}

// join takes a ticket, or its old one again. The look comes with it.
func (n *node) join() {
	s := n.s
	n.newRole()
	n.returns = true
	if n.ticket == 0 {
		s.made++
		n.ticket = s.made
	}
	n.waiter = waiter{inLine: true, hears: true, turn: crowd.Turn{Own: n.number(), Lease: s.lease}, beats: leasetime.WaiterBeat(s.lease)}
	n.l.enter(n)
	n.beatIn(n.beats)
	if n.wait < forever {
		n.later(n.left(), func() {
			n.leaveLine()
			s.leave()
			n.end(&s.held)
		})
	}
	n.look(s.costs.beat)
}

// leaveLine gives up the place in line, and a call with it.
func (n *node) leaveLine() {
	n.l.leave(n)
	n.inLine = false
	n.call(false)
	if n.l.holder != n {
		n.newRole()
	}
}

// call begins or ends a call to the dormant waiters.
func (n *node) call(on bool) {
	switch {
	case on == n.calling:
		return
	case on:
		n.l.calls++
	default:
		n.l.calls--
	}
	n.calling = on
}

// request sends the server one request of this session.
func (n *node) request(cost time.Duration, then func()) {
	n.busy = true
	n.s.server.work(cost, n.unlessVoid(func() {
		n.busy, n.heardAt = false, n.s.now
		then()
	}))
}

// proceed does what is due, or waits for what is due next.
func (n *node) proceed() {
	if n.busy {
		return
	}
	for _, w := range n.mail {
		n.decide(w)
	}
	n.mail = nil
	switch now := n.s.time(); {
	case n.turn.TriesBy(now):
		n.try()
	case n.turn.LooksBy(now):
		n.look(0)
	default:
		n.alarms++
		alarm := n.alarms
		n.later(n.turn.Next().Sub(now), func() {
			if alarm == n.alarms {
				n.proceed()
			}
		})
	}
}

// look shows the lock as it is at the look's start. The mark comes at its end, so that a start in
// between is neither seen nor heard, as in reality.
func (n *node) look(besides time.Duration) {
	holder := n.l.holder
	n.request(besides+n.s.look(), func() { n.looked(holder) })
}

// looked makes the waiter listen, or dormant, by its rank.
func (n *node) looked(holder *node) {
	rank := n.l.before(n) + 1
	switch {
	case rank > crowd.MostListeners:
		n.beDormant(func() { n.placed(rank, holder) })
	case !n.hears: // it wakes up: it starts to listen, and looks again
		n.hears = true
		second := n.l.holder
		n.request(n.s.look(), func() {
			n.saw(second)
			n.marked = true
			n.placed(rank, holder)
		})
	default:
		n.saw(holder)
		n.marked = true
		n.placed(rank, holder)
	}
}

// beDormant stops listening, and cancels the waiter's turn.
func (n *node) beDormant(then func()) {
	if !n.hears {
		then()
		return
	}
	n.unmarked = n.unmarked || n.marked
	n.hears, n.marked, n.knows, n.mail = false, false, nothing, nil
	n.turn.DropTry()
	n.unwatch()
	n.request(n.s.costs.beat, then)
}

// placed acts on a look: it decides when to try and to look again, and whether there is
// room for the waiter.
func (n *node) placed(rank int, holder *node) {
	s := n.s
	at := crowd.Situation{Rank: rank, Held: holder != nil, Free: holder == nil, KnowsLess: n.l.marked(n) > 0 && n.knows == nothing}
	if rank <= crowd.MostListeners {
		for _, before := range n.l.line[:rank-1] {
			at.Ahead = append(at.Ahead, before.number())
		}
	}
	n.turn.Looked(s.time(), at)
	if rank == 1 || crowd.MayStay(rank, len(n.l.line), 0, s.connections) {
		n.duties(holder)
		return
	}
	n.request(s.costs.beat, func() { // the query for room
		if crowd.MayStay(rank, len(n.l.line), s.connections-s.open, s.connections) {
			n.duties(holder)
			return
		}
		n.refused = true
		n.leaveLine()
		s.leave()
		n.away()
	})
}

// duties calls the dormant waiters if few listen, and makes the first few watch the holder.
func (n *node) duties(holder *node) {
	if few := crowd.FewListen(n.l.marked(nil), len(n.l.line)); few != n.calling {
		n.call(few)
		n.request(n.s.costs.beat, func() { n.watch(holder) })
		return
	}
	n.watch(holder)
}

// watch begins or ends the watch. A holder shows its requests from its first heartbeat on.
func (n *node) watch(holder *node) {
	n.unwatch()
	if holder != nil && n.turn.Rank <= crowd.MostWatchers && n.s.now-holder.since >= crowd.FirstBeat {
		n.watched, n.beats = holder, leasetime.BeatEvery(n.s.lease)
		n.beatIn(n.beats)
		n.turn.WatchBegins(n.s.time())
	}
	n.tryLater()
	n.proceed()
}

// unwatch makes the heartbeat look at nothing or, if the waiter is dormant, for a call.
func (n *node) unwatch() {
	n.watched, n.beats = nil, leasetime.WaiterBeat(n.s.lease)
	if !n.hears {
		n.beats = crowd.HearCall(n.s.lease)
	}
}

// beaten reads the answer to a heartbeat: a watch sees that its holder is gone, and a dormant
// waiter sees that somebody calls.
func (n *node) beaten() {
	switch {
	case n.watched != nil && n.watched != n.l.holder:
		n.unwatch()
		n.turn.WatchEnds(n.s.time(), true)
	case !n.hears && n.l.calls > 0:
		n.turn.LookAt(n.s.time())
	default:
		return
	}
	n.proceed()
}

// tryLater makes the first in line try in a while anyway, unless the heartbeat watches.
func (n *node) tryLater() { n.turn.TryLater(n.s.time(), n.watched != nil) }

// try takes the lock if it is free.
func (n *node) try() {
	burst := n.turn.TakeTry()
	n.tryLater()
	n.request(n.s.costs.beat, func() {
		if n.l.holder == nil {
			delay := leasetime.DeadAfter(n.s.lease, 0)
			if n.knows == over {
				delay = 0
			}
			n.granted(delay)
			return
		}
		if n.knows == over { // there must be a holder that it does not know
			n.knows, burst = running, true
		}
		if burst {
			n.turn.LookAt(n.s.time())
		}
		n.proceed()
	})
}

// saw adds the holder that a look has shown to what the waiter knows. Its clean end may
// have arrived before the look.
func (n *node) saw(holder *node) {
	if holder == nil {
		return
	}
	for _, w := range n.mail {
		if w.clean && w.from == holder {
			if n.knows == nothing {
				n.knows, n.covers = over, w.coversEarlier
			}
			return
		}
	}
	n.knows = running
}

// hear adds an announcement to what the waiter knows. A clean end that names the waiter, and covers
// all earlier holders, tells it enough even if it has known nothing.
func (n *node) hear(w word) {
	switch {
	case !w.clean:
		n.knows = running
	case n.knows != nothing || w.to == n && w.coversEarlier && !n.unmarked:
		n.knows, n.covers = over, w.coversEarlier
	}
	n.mail = append(n.mail, w)
	n.proceed()
}

// decide decides after a word when to try and to look.
func (n *node) decide(w word) {
	if w.clean {
		n.turn.HeardEnd(n.s.time(), w.to.number())
		return
	}
	n.turn.HeardStart(n.s.time(), w.from.number(), true, n.watched != nil)
}
