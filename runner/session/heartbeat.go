package session

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/leasetime"
)

// PlainBeatQuery is a query that costs the server as little as any can.
const PlainBeatQuery = "SELECT pg_catalog.pg_backend_pid()"

// Heartbeat is the request by which a session asks the server for a sign of life.
type Heartbeat struct {
	Every time.Duration // 0: as often as a holder needs, leasetime.BeatEvery
	Request
	// Once are queries that precede those of the first heartbeat. An error in one of them costs no
	// more than that heartbeat.
	Once []string
}

// SetHeartbeat replaces the session's heartbeat, from the next one on.
func (s *Session) SetHeartbeat(h Heartbeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.Every = cmp.Or(h.Every, leasetime.BeatEvery(s.cfg.Lease))
	s.heartbeat = h
}

// takeRequest takes the next heartbeat's request.
func (s *Session) takeRequest() Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.heartbeat.Request
	r.SQL = slices.Concat(s.heartbeat.Once, r.SQL)
	s.heartbeat.Once = nil
	if s.holding.Load() && r.Then != nil {
		r = inSavepoint(r)
	}
	return r
}

// inSavepoint makes a request of a transaction that must go on if the server rejects a query, for
// instance because it has no memory for one more lock. The last query has the session's comment,
// for those who look.
func inSavepoint(r Request) Request {
	then := r.Then
	r.SQL = slices.Concat([]string{"SAVEPOINT pglead"}, r.SQL, []string{"ROLLBACK TO SAVEPOINT pglead; RELEASE SAVEPOINT pglead", PlainBeatQuery})
	r.Then = func(answers []Rows) { then(answers[1 : len(answers)-2]) }
	return r
}

// StartHeartbeat starts the heartbeat. Without it the server ends the session after the
// lease, and nothing notices a silent network. A second call does nothing. The heartbeat
// goes on until the session is lost or closed.
func (s *Session) StartHeartbeat() {
	s.heartbeatOnce.Do(func() {
		timer, err := s.clock.newTimer()
		if err != nil {
			s.fail(fmt.Errorf("make a timer for the heartbeat: %w", err))
			return
		}
		s.mu.Lock()
		s.timer = timer
		first := s.clock.now().Add(s.heartbeat.Every)
		s.mu.Unlock()
		s.BeatAt(first)
		s.beating.Go(func() { s.beat(timer) })
		s.beating.Go(func() {
			<-s.stop
			timer.Stop()
		})
	})
}

func (s *Session) hasHeartbeat() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timer != nil
}

// BeatAt sets the boot time at which the next heartbeat is sent. Later ones follow at intervals of
// Heartbeat.Every. A heartbeat that is already on the wire does not count as the next one.
func (s *Session) BeatAt(at boottime.Instant) {
	s.mu.Lock()
	err := s.setBeat(at)
	s.mu.Unlock()
	if err != nil {
		s.failTimer(err)
	}
}

// setBeat is BeatAt, for a caller that holds mu.
func (s *Session) setBeat(at boottime.Instant) error {
	s.beatAt = at
	if s.timer == nil {
		return nil
	}
	return s.timer.Set(min(at, s.deadline()))
}

// nextBeat is the heartbeat, and whether it is due now. It sets the next one, before this one is
// sent, since its Then may set another time. If a heartbeat asks nothing, the answer to any request
// will do.
func (s *Session) nextBeat() (beat Heartbeat, due bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, at := s.clock.now(), s.beatAt
	beat = s.heartbeat
	if beat.Then == nil && !beat.commit {
		at = max(at, s.provenAt.Add(beat.Every))
	}
	if now < at {
		return beat, false, s.setBeat(at)
	}
	return beat, true, s.setBeat(now.Add(beat.Every))
}

// failTimer ends the session because its timer has failed, unless the session is closed.
func (s *Session) failTimer(err error) {
	select {
	case <-s.stop: // Close has stopped the timer
	default:
		s.fail(fmt.Errorf("the heartbeat's timer: %w", err))
	}
}

// beat is the goroutine that sends heartbeats, until the timer is stopped or the
// session is lost.
func (s *Session) beat(timer timer) {
	for s.EndError() == nil {
		if err := timer.Wait(); err != nil {
			s.failTimer(err)
			return
		}
		if s.ExpireIfDue() {
			return
		}
		beat, due, err := s.nextBeat()
		if err != nil {
			s.failTimer(err)
			return
		}
		if !due {
			continue
		}
		select {
		case s.onWire <- struct{}{}:
			if _, err := s.transmit(s.takeRequest()); err != nil {
				return
			}
		default: // the answer to the request that is under way will do, unless the heartbeat asks something, or commits
			if (beat.Then != nil || beat.commit) && s.beatQueued.CompareAndSwap(false, true) {
				s.beating.Go(s.beatInTurn)
			}
		}
	}
}

// beatInTurn sends a heartbeat after the requests that already wait for the connection.
func (s *Session) beatInTurn() {
	defer s.beatQueued.Store(false)
	select {
	case s.onWire <- struct{}{}:
		_, _ = s.transmit(s.takeRequest()) // an error has ended the session
	case <-s.done:
	case <-s.stop:
	}
}

// ExpireIfDue says whether the deadline has passed, and ends the session if so.
func (s *Session) ExpireIfDue() bool {
	if s.clock.now() < s.Deadline() {
		return false
	}
	s.fail(s.silence())
	return true
}

// silence is the cause of the loss when the deadline has passed.
func (s *Session) silence() error {
	s.mu.Lock()
	second, depends, heard := s.second, s.depends, s.provenAt
	s.mu.Unlock()
	switch {
	case depends && second.Deadline() < heard.Add(leasetime.HolderShare(s.cfg.Lease)) && second.overdue():
		return s.silentStandbys()
	case !s.overdue():
		return ErrStopped
	}
	return ErrSilent
}

// overdue says whether the server owes an answer, and has taken longer than one heartbeat interval
// for that and the one before.
func (s *Session) overdue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unansweredSince <= s.provenAt {
		return false
	}
	return s.answerTook+s.clock.now().Sub(s.unansweredSince) > leasetime.BeatEvery(s.cfg.Lease)
}

// broken is the cause of the loss when the connection broke. At the deadline the guard may shut the
// connection down before this process has noticed the deadline. Then the cause of the loss is the
// silence before. (A session without a heartbeat may have asked nothing for as long.)
func (s *Session) broken(cause error) error {
	if s.hasHeartbeat() && s.clock.now() >= s.Deadline().Add(-s.cfg.Lease/10) {
		return s.silence()
	}
	return cause
}
