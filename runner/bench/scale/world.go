package main

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// world has a clock that jumps from one event to the next, and a random source that repeats
// itself for the same seed.
type world struct {
	now    time.Duration
	due    events
	made   int
	chance *rand.Rand
}

func newWorld(seed uint64) *world {
	return &world{chance: rand.New(rand.NewPCG(seed, 0))}
}

// time is the time as package crowd reads it.
func (w *world) time() time.Time { return time.Unix(0, 0).Add(w.now) }

// event is something that happens at a time. Of two events at the same time the one that was
// planned first happens first.
type event struct {
	at   time.Duration
	made int
	do   func()
}

// events are a heap, with the next one on top.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].made < e[j].made
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = event{} // else what it refers to would stay in memory
	*e = (*e)[:len(*e)-1]
	return last
}

// after calls do when the time d has passed.
func (w *world) after(d time.Duration, do func()) {
	w.made++
	heap.Push(&w.due, event{w.now + max(0, d), w.made, do})
}

// run lets time pass, until the given time or until no event is left.
func (w *world) run(until time.Duration) {
	for len(w.due) > 0 && w.due[0].at <= until {
		next := heap.Pop(&w.due).(event)
		w.now = next.at
		next.do()
	}
}

// between is a random time from least to most.
func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.chance.Int64N(int64(most-least)+1))
}

// processors do jobs. All current jobs share them equally, as with an operating system,
// and no job gets more than one processor.
type processors struct {
	w       *world
	number  float64
	busy    time.Duration // how long they have worked, all together
	pending jobs
	done    float64 // the seconds of work that a job would have got that was there from the start
	since   time.Duration
	wakes   time.Duration // the time of the event that calls finish next,
	round   int           // and its number; 0: there is none
}

// job is over when processors.done has reached due.
type job struct {
	due  float64
	made int
	then func()
}

type jobs []job

func (j jobs) Len() int { return len(j) }
func (j jobs) Less(a, b int) bool {
	return j[a].due < j[b].due || j[a].due == j[b].due && j[a].made < j[b].made
}
func (j jobs) Swap(a, b int) { j[a], j[b] = j[b], j[a] }
func (j *jobs) Push(x any)   { *j = append(*j, x.(job)) }
func (j *jobs) Pop() any {
	last := (*j)[len(*j)-1]
	(*j)[len(*j)-1] = job{}
	*j = (*j)[:len(*j)-1]
	return last
}

// rate is the part of a processor that each job gets.
func (p *processors) rate() float64 {
	return min(1, p.number/float64(max(1, len(p.pending))))
}

// pass adds to done the work up to now.
func (p *processors) pass() {
	p.done += p.rate() * (p.w.now - p.since).Seconds()
	p.since = p.w.now
}

// work begins a job that takes so much processor time. At its end it calls then, unless that is
// nil.
func (p *processors) work(demand time.Duration, then func()) {
	p.pass()
	p.busy += demand
	p.w.made++
	heap.Push(&p.pending, job{p.done + demand.Seconds(), p.w.made, then})
	p.next()
}

// next plans a call of finish for when the first job is over. Jobs that begin meanwhile can only
// delay that, so one event is enough: if it comes too early, finish plans the next.
func (p *processors) next() {
	if len(p.pending) == 0 {
		return
	}
	rest := time.Duration((p.pending[0].due-p.done)/p.rate()*float64(time.Second)) + 1
	if p.round > 0 && p.wakes <= p.w.now+rest {
		return
	}
	p.w.made++
	p.round, p.wakes = p.w.made, p.w.now+rest
	round := p.round
	p.w.after(rest, func() {
		if round == p.round {
			p.round = 0
			p.finish()
		}
	})
}

// finish ends the jobs that are over by now, and calls what follows each.
func (p *processors) finish() {
	p.pass()
	const slack = 1e-9
	var ready []job
	for len(p.pending) > 0 && p.pending[0].due <= p.done+slack {
		ready = append(ready, heap.Pop(&p.pending).(job))
	}
	p.next()
	for _, j := range ready {
		if j.then != nil {
			j.then()
		}
	}
}
