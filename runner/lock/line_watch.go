package lock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/crowd"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// While one session holds the lock, a look at all that the server shows of the lock tells nothing
// new. So the heartbeats of the first in line look at that session alone, if it numbers its
// requests. A whole look follows when they see anything but the holder's next request, and every
// few leases (Turn.WatchBegins). A heartbeat wakes fewer threads than a goroutine that asks
// and waits would.
//
// The heartbeat of the very first also probes the lock, since some ends are silent. It frees
// the lock at once, so that a try that is under way does not take it a second time.

// watch is what the first few in line see of the holder. The session's reader writes it, too.
type watch struct {
	mu     sync.Mutex
	count  int              // counts the watches, since an answer to an earlier one may still arrive
	of     evidence.Seat    // the holder that is watched, as the latest whole look showed it
	last   evidence.Seat    // the holder, with its latest request that was seen; PID 0 if none was
	since  boottime.Instant // when the first answer that shows that request was received
	enough time.Duration    // how long the silence has to last, by the latest whole look
	beat   time.Duration    // between two requests of the holder
	most   time.Duration    // between two questions
	state  watchState

	warmedUp bool // a question was answered, and the warm-up was sent with the first one

	// The session's reader does not use these:
	prepared string // the name of the prepared statement for the question
	bestRank int    // since the holder's latest request was first seen
}

// watchState is what the latest watch has found.
type watchState int

const (
	off        watchState = iota // there is no watch
	watching                     // the watch goes on
	shouldLook                   // the holder is silent, or does something else
	shouldTry                    // the lock is free, or its holder's session is over
)

// startWatch makes the heartbeat watch a holder whose requests have numbers, until an answer calls
// for something else. Of any other holder the first in line finds out by its tries (Turn.TryLater).
func (w *waiter) startWatch(ctx context.Context, of evidence.Seat, enough time.Duration) error {
	name, err := w.prepareWatch(ctx)
	if err != nil {
		return err
	}
	watch := &w.watched
	watch.mu.Lock()
	watch.count++
	watch.of, watch.enough, watch.state = of, enough, watching
	watch.beat, watch.most = w.askPace()
	count, first := watch.count, watch.whenDue(of.Age)
	ask := session.Heartbeat{Every: watch.most}
	ask.SQL = []string{fmt.Sprintf("EXECUTE %s(%d, %t)", name, of.PID, w.turn.Rank == 1)}
	if !watch.warmedUp {
		ask.Once = w.turnWarmupQueries()
	}
	over := watch.since.Add(enough) // the holder will have been silent for long enough
	watch.mu.Unlock()
	ask.Then = func(answers []session.Rows) { w.hearOfHolder(count, answers[len(answers)-1]) }
	w.Session.SetHeartbeat(ask)
	w.turn.WatchBegins(time.Now())
	if of.Age < crowd.FirstBeat { // the request may have been its start, which this session has not heard
		first = crowd.FirstBeat - of.Age + crowd.LookAfter
	}
	w.Session.BeatAt(min(boottime.Now().Add(first), over))
	return nil
}

// hearOfHolder takes the answer to a question of watch number count, and plans the next question.
// The session's reader calls it.
func (w *waiter) hearOfHolder(count int, answer session.Rows) {
	received, watch := boottime.Now(), &w.watched
	watch.mu.Lock()
	defer watch.mu.Unlock()
	watch.warmedUp = true
	if watch.state != watching || watch.count != count {
		return
	}
	var next time.Duration
	if watch.state, next = watch.judge(received, answer); watch.state == watching {
		w.Session.BeatAt(received.Add(next))
		return
	}
	nudge(w.listener.news)
}

// askPace is the time between two requests of the holder, and at most between two questions about it.
func (w *waiter) askPace() (beat, most time.Duration) {
	beat = leasetime.BeatEvery(w.cfg.Session.Lease)
	if w.turn.Rank == 1 && w.Session.Encrypted() {
		// The holder's connection may be encrypted, too. Then the holder's guard can't announce
		// that its pglead was killed.
		return beat, beat / 2
	}
	return beat, beat
}

// whenDue is the time until the question just after the holder's next request is due, if its latest
// has this age. Such a question counts the silence from its beginning.
func (w *watch) whenDue(age time.Duration) time.Duration {
	if due := w.beat - age + crowd.LookAfter; due > 0 && due < w.beat+crowd.LookAfter {
		return min(due, w.most)
	}
	return w.most
}

// whileSilent is the time until the next question about a holder that has been silent, and is
// dead if it stays silent for the time left.
func (w *watch) whileSilent(silent, left time.Duration) time.Duration {
	switch {
	case silent < w.beat-crowd.LookAfter:
		return min(w.most, w.beat-silent, left)
	case silent < 2*w.beat: // its request is late, and may be about to come
		return min(w.beat/4, left)
	}
	return min(w.most, left)
}

// prepareWatch prepares the statement that looks at a session and, if its second parameter is true,
// probes the lock. A prepared statement takes the server two thirds of the time that another one
// takes. A pooler for whole sessions that passes the login may hand over a connection on which
// another waiter has left its statement, so each waiter's has a name of its own.
func (w *waiter) prepareWatch(ctx context.Context) (name string, err error) {
	name = fmt.Sprintf("pglead_%d_%d", advisory.TicketClass(w.place.line), w.place.ticket)
	if name == w.watched.prepared {
		return name, nil
	}
	err = w.send(ctx, fmt.Sprintf(`PREPARE %s(int, boolean) AS SELECT CASE WHEN $2 THEN %s ELSE false END,
	backend_start, state_change, extract(epoch FROM pg_catalog.clock_timestamp() - state_change), pg_catalog.left(query, 60)
FROM pg_catalog.pg_stat_get_activity($1)`, name, advisory.Exclusive(w.place.line).ProbeSQL()), session.PlainBeatQuery) // which has a comment
	if err != nil {
		return "", err
	}
	w.watched.prepared = name
	return name, nil
}

func (w *watch) forgetRequest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.since = evidence.Seat{}, 0
}

// noteLooked notes a holder's request, as a look shows it, and says how long the holder has been
// silent, if that request was seen before.
func (w *watch) noteLooked(s evidence.Seat, found *evidence.Look) (silent time.Duration, again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	since, again := w.noteSeen(s, found.Received)
	return found.Sent.Sub(since), again
}

// noteSeen notes a holder's latest request, and says since when it has been seen and whether it
// was seen before. The caller holds mu.
func (w *watch) noteSeen(s evidence.Seat, received boottime.Instant) (since boottime.Instant, again bool) {
	again = s.SameRequest(w.last)
	if !again {
		w.last, w.since = s, received
	}
	return w.since, again
}

// judge says what an answer about the holder calls for and, while the watch goes on, in what time the
// next question is due. The caller holds mu.
func (w *watch) judge(received boottime.Instant, answer session.Rows) (watchState, time.Duration) {
	row, err := answer.Only(5)
	if err != nil || row[0] != "f" || row[1] != w.of.Opened {
		return shouldTry, 0
	}
	d, _ := describe.Parse(row[4])
	if d.Request == 0 {
		return shouldLook, 0
	}
	seen := w.of
	seen.Request, seen.Changed = d.Request, row[2]
	since, again := w.noteSeen(seen, received)
	left := since.Add(w.enough).Sub(received)
	switch {
	case !again:
		return watching, w.whenDue(evidence.RequestAge(row[3]))
	case left <= 0:
		return shouldLook, 0
	}
	return watching, w.whileSilent(w.enough-left, left)
}

// unwatch ends the watch, if there is one.
func (w *waiter) unwatch() {
	w.watched.mu.Lock()
	was := w.watched.state
	w.watched.state = off
	w.watched.mu.Unlock()
	if was != off {
		w.beatPlainly()
	}
}

// actOnWatch acts on what the watch has found.
func (w *waiter) actOnWatch() {
	state := w.watched.current()
	if state == off || state == watching {
		return
	}
	w.unwatch()
	w.turn.WatchEnds(time.Now(), state == shouldTry)
}

func (w *watch) current() watchState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}
