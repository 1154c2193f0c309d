package main

import (
	"time"

	"github.com/pglead/pglead/runner/crowd"
)

// tenure is a node's state while it holds the lock.
type tenure struct {
	since         time.Duration
	coversEarlier bool // its clean end covers all earlier holders, too
	next          crowd.ToCall
	runs          bool // its command
}

// granted holds the lock. If there has to be a delay, the node leaves the line for that time.
func (n *node) granted(delay time.Duration) {
	s := n.s
	n.newRole()
	n.l.holder = n
	n.tenure = tenure{since: s.now, coversEarlier: delay > 0 || n.inLine && n.covers}
	s.holders++
	n.beatIn(crowd.FirstBeat)
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
		switch {
		case len(n.l.line) > n.l.marked(nil):
			n.next = crowd.SomeDormant
		case n.refused:
			n.next = crowd.SomeAbsent
		}
		n.l.say(word{from: n})
		s.node(s.costs.nodeRun, func() {
			n.runs = true
			s.after(n.command(), n.release)
		})
	})
}

// release keeps the lock, if it has to, until one of those who may be next listens.
func (n *node) release() {
	patience := n.next.Patience(n.s.lease)
	if patience == 0 {
		n.giveBack()
		return
	}
	n.linger(n.s.now + patience)
}

// linger calls those in line, and looks repeatedly whether one of them listens.
func (n *node) linger(until time.Duration) {
	s := n.s
	n.call(true)
	s.server.work(s.look(), func() {
		listens, anybody := n.l.someoneListens()
		if listens || !anybody && n.next == crowd.SomeDormant || s.now >= until {
			n.giveBack()
			return
		}
		s.after(crowd.CallEvery, func() { n.linger(until) })
	})
}

// giveBack tells the line, and gives the lock back.
func (n *node) giveBack() {
	s := n.s
	s.server.work(s.costs.release, func() {
		if n.l.say(word{from: n, clean: true, coversEarlier: n.coversEarlier}) {
			s.xids++ // a transaction that announces something has a number
		}
		n.call(false)
		n.newRole()
		n.l.holder = nil
		s.holders--
		s.leave()
		n.end(&s.ran)
	})
}
