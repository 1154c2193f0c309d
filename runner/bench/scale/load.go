package main

import (
	"time"
)

// figures are the results of a load. Those in its tally are for one day.
type figures struct {
	nodes      int
	day        tally
	processors float64 // how many of the server's were busy, on average
	pooler     float64 // the same for the pooler, which has one
	last       time.Duration
	noAnswer   float64 // the share of nodes that ended with 69
	peak       int
	queued     int // how many waited for a connection of the pool at the end
}

const day = 24 * time.Hour

// times is a tally multiplied by a factor.
func (t tally) times(f float64) tally {
	n := func(of int) int { return int(float64(of)*f + .5) }
	return tally{
		attempts: n(t.attempts), refused: n(t.refused), logins: n(t.logins), ran: n(t.ran), held: n(t.held),
		unreachable: n(t.unreachable), xids: n(t.xids), words: n(t.words), delays: n(t.delays), looks: n(t.looks),
		wal: t.wal * f, beats: n(t.beats),
	}
}

func (t tally) minus(o tally) tally {
	return tally{
		attempts: t.attempts - o.attempts, refused: t.refused - o.refused, logins: t.logins - o.logins, ran: t.ran - o.ran, held: t.held - o.held,
		unreachable: t.unreachable - o.unreachable, xids: t.xids - o.xids, words: t.words - o.words, delays: t.delays - o.delays, looks: t.looks - o.looks,
		wal: t.wal - o.wal, beats: t.beats - o.beats,
	}
}

// lasting is a command that takes that long.
func lasting(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// cronEvery is how often cron fires.
const cronEvery = 5 * time.Minute

// cron starts the same job on all nodes, under one key and without waiting, within a second plus
// the splay. The job holds the lock until all nodes have their answer.
func cron(splay time.Duration) func(*scene, int) figures {
	return func(s *scene, nodes int) figures {
		l := &theLock{s: s}
		left := nodes
		command := func() time.Duration {
			if left == 1 { // there is nobody to wait for
				return 0
			}
			return forever
		}
		ended := func() {
			if left--; left == 1 && l.holder != nil && l.holder.runs {
				l.holder.release()
			}
		}
		for range nodes {
			s.after(s.between(0, time.Second+splay), func() { s.start(l, 0, command, ended) })
		}
		s.run(forever / 2)
		window := max(s.last, cronEvery)
		return figures{nodes: nodes, day: s.times(float64(day / cronEvery)),
			processors: s.server.busy.Seconds() / window.Seconds(), pooler: s.pooled.busy.Seconds() / window.Seconds(),
			last: s.last, noAnswer: float64(s.unreachable) / float64(nodes), peak: s.peak}
	}
}

// In CI each runner begins a job every ten minutes on average, at a random time. Half of the jobs
// come in bursts of five, since one push starts that many. Ten runners share a key. Each job holds
// it for 10 to 30 s, and waits for it for up to half an hour.
const (
	ciEvery   = 10 * time.Minute
	ciBurst   = 5
	ciRunners = 10
	ciWait    = 30 * time.Minute
)

func ci(s *scene, nodes int) figures {
	locks := make([]*theLock, max(1, nodes/ciRunners))
	for i := range locks {
		locks[i] = &theLock{s: s}
	}
	rate := float64(nodes) / ciEvery.Seconds()
	arrivals := func(perSecond float64, size int) {
		var next func()
		pause := func() time.Duration {
			return time.Duration(s.chance.ExpFloat64() / perSecond * float64(time.Second))
		}
		next = func() {
			l := locks[s.chance.IntN(len(locks))]
			for range size {
				s.after(s.between(0, time.Second), func() { s.start(l, ciWait, lasting(s.between(10*time.Second, 30*time.Second)), nil) })
			}
			s.after(pause(), next)
		}
		s.after(pause(), next)
	}
	arrivals(rate/2, 1)
	arrivals(rate/2/ciBurst, ciBurst)
	return s.during(nodes)
}

// standbyOf is how many daemons share one key: the one that leads, and those that stand by.
const standbyOf = 3

// standby starts daemons (`pglead lead`) that stand by for ever, since no leader ends.
func standby(s *scene, nodes int) figures {
	var l *theLock
	for i := range nodes {
		if i%standbyOf == 0 {
			l = &theLock{s: s}
		}
		of := l
		s.after(s.between(0, time.Minute), func() { s.start(of, forever, lasting(forever), nil) })
	}
	return s.during(nodes)
}

// during measures a window of some minutes, after some minutes in which the load
// settles. An overloaded server never settles, so most nodes get less time.
func (s *scene) during(nodes int) figures {
	settling, window := 5*time.Minute, 10*time.Minute
	if nodes > 10000 {
		settling, window = 2*time.Minute, 2*time.Minute
	}
	s.run(settling)
	s.now = settling
	before, busy, pooled := s.tally, s.server.busy, s.pooled.busy
	s.run(settling + window)
	s.now = settling + window
	t := s.minus(before)
	return figures{nodes: nodes, day: t.times(float64(day) / float64(window)), peak: s.peak, queued: len(s.queue), noAnswer: float64(t.unreachable) / float64(nodes),
		processors: (s.server.busy - busy).Seconds() / window.Seconds(), pooler: (s.pooled.busy - pooled).Seconds() / window.Seconds()}
}
