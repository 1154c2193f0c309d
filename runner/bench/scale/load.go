package main

import (
	"time"
)

// figures are what came of a load: those of a tally a day.
type figures struct {
	nodes      int
	day        tally
	processors float64 // that were busy, on average
	pooler     float64 // likewise, of its one
	last       time.Duration
	noAnswer   float64 // the share of nodes that ended with 69
	peak       int
	queued     int // for a connection of the pool, at the end
}

const day = 24 * time.Hour

// times is a tally of so many of it.
func (t tally) times(f float64) tally {
	n := func(of int) int { return int(float64(of)*f + .5) }
	return tally{
		attempts: n(t.attempts), refused: n(t.refused), logins: n(t.logins), ran: n(t.ran), held: n(t.held),
		unreachable: n(t.unreachable), xids: n(t.xids), words: n(t.words), delays: n(t.delays), looks: n(t.looks),
		wal: t.wal * f, beats: t.beats * f,
	}
}

func (t tally) minus(o tally) tally {
	return tally{
		attempts: t.attempts - o.attempts, refused: t.refused - o.refused, logins: t.logins - o.logins, ran: t.ran - o.ran, held: t.held - o.held,
		unreachable: t.unreachable - o.unreachable, xids: t.xids - o.xids, words: t.words - o.words, delays: t.delays - o.delays, looks: t.looks - o.looks,
		wal: t.wal - o.wal, beats: t.beats - o.beats,
	}
}

// cronEvery is how often cron fires.
const cronEvery = 5 * time.Minute

// cron has all nodes start the same job, under one key and without a wait, within a
// second and the splay. The job holds the lock until all have asked.
func cron(splay time.Duration) func(*scene, int) figures {
	return func(s *scene, nodes int) figures {
		l := &theLock{s: s}
		left := nodes
		command := forever
		if nodes == 1 { // there is nobody to wait for
			command = 0
		}
		ended := func() {
			if left--; left == 1 && l.holder != nil {
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

// Of CI each runner begins a job every ten minutes, on average and at any time; half of
// them come in bursts of five, for which a push has started as many. Ten runners have
// a key together, which each job holds for 10 to 30 s and waits for up to half an hour.
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
				s.after(s.between(0, time.Second), func() { s.start(l, ciWait, s.between(10*time.Second, 30*time.Second), nil) })
			}
			s.after(pause(), next)
		}
		s.after(pause(), next)
	}
	arrivals(rate/2, 1)
	arrivals(rate/2/ciBurst, ciBurst)
	return s.during(nodes)
}

// standbyOf is how many daemons stand by for one key, the one that leads included.
const standbyOf = 3

// standby has daemons (`pglead lead`) stand by for ever. Nothing befalls their leaders.
func standby(s *scene, nodes int) figures {
	var l *theLock
	for i := range nodes {
		if i%standbyOf == 0 {
			l = &theLock{s: s}
		}
		of := l
		s.after(s.between(0, time.Minute), func() { s.start(of, forever, forever, nil) })
	}
	return s.during(nodes)
}

// during is what comes to pass within some minutes, after some in which all settles.
func (s *scene) during(nodes int) figures {
	settling, window := 5*time.Minute, 10*time.Minute
	if nodes > 1000 { // chance evens out sooner
		settling, window = 2*time.Minute, 2*time.Minute
	}
	s.run(settling)
	s.now = settling
	s.change(0, 0)
	before, busy, pooled := s.tally, s.server.busy, s.pooled.busy
	s.run(settling + window)
	s.now = settling + window
	s.change(0, 0)
	t := s.minus(before)
	standing := t.beats * s.costs.beat.Seconds()
	return figures{nodes: nodes, day: t.times(float64(day) / float64(window)), peak: s.peak, queued: len(s.queue), noAnswer: float64(t.unreachable) / float64(nodes),
		processors: ((s.server.busy - busy).Seconds() + standing) / window.Seconds(), pooler: (s.pooled.busy - pooled).Seconds() / window.Seconds()}
}
