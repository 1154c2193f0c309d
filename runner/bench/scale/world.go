package main

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// world is a time that passes only from one event to the next, and a chance that is
// the same for the same seed.
type world struct {
	now    time.Duration
	due    events
	made   int
	chance *rand.Rand
}

func newWorld(seed uint64) *world {
	return &world{chance: rand.New(rand.NewPCG(seed, 0))}
}

// event is what is to be done at a time. Of two at the same time the one that was
// made first comes first.
type event struct {
	at   time.Duration
	made int
	do   func()
}

// events are a heap of them.
type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].made < e[j].made
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	(*e)[len(*e)-1] = event{} // or what it refers to would stay
	*e = (*e)[:len(*e)-1]
	return last
}

// after has something done when a time has passed.
func (w *world) after(d time.Duration, do func()) {
	w.made++
	heap.Push(&w.due, event{w.now + max(0, d), w.made, do})
}

// run lets the time pass, until a time or until nothing is to be done any more.
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

// processors are shared in equal parts by all that there is to do at a moment, as an
// operating system does; nothing gets more than one of them.
type processors struct {
	w       *world
	number  float64
	taken   func() float64 // of them, by what goes on all the time
	busy    time.Duration  // how long they worked, all together
	pending jobs
	done    float64 // what one that was always there would have got, in seconds
	since   time.Duration
	wakes   time.Duration // when it is looked next what is done,
	round   int           // by the event of this number; 0: there is none
}

// job is done when processors.done has come to due.
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

// rate is how fast each job is done.
func (p *processors) rate() float64 {
	// Where what goes on all the time would leave nothing, it is that which comes late.
	const least = .05
	free := max(p.number-p.taken(), least*p.number)
	return min(1, free/float64(max(1, len(p.pending))))
}

// pass brings done up to now.
func (p *processors) pass() {
	p.done += p.rate() * (p.w.now - p.since).Seconds()
	p.since = p.w.now
}

// work does something when so much time of a processor has been spent on it.
func (p *processors) work(demand time.Duration, then func()) {
	p.pass()
	p.busy += demand
	p.w.made++
	heap.Push(&p.pending, job{p.done + demand.Seconds(), p.w.made, then})
	p.next()
}

// next waits for the job that is done first. What comes in between makes that later,
// so that one event is enough, which looks again.
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

// finish does what comes after the jobs that are done by now.
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
