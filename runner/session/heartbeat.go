package session

import (
	"fmt"
	"time"
)

// PlainBeat is the cheapest question there is.
const PlainBeat = "SELECT pg_catalog.pg_backend_pid()"

// Heartbeat is how a session asks the server for a sign of life.
type Heartbeat struct {
	Every time.Duration
	SQL   []string
	Heard func([]Rows) // gets the answer, as a Request's Then; may be nil

	confirmed bool // see Request
}

// BeatEvery is how often the holder of a lock asks: it leaves room for two lost
// heartbeats in a holder's share.
func BeatEvery(lease time.Duration) time.Duration { return lease / heartbeatsPerLease }

// SetHeartbeat replaces the session's heartbeat, from the next one on.
func (s *Session) SetHeartbeat(h Heartbeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heartbeat = h
}

func (s *Session) currentHeartbeat() Heartbeat {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heartbeat
}

// StartHeartbeat starts the heartbeat, once: without it the server ends the session
// after the lease, and nothing notices a silent network. Only Close stops it.
func (s *Session) StartHeartbeat() { s.heartbeatOnce.Do(s.startHeartbeat) }

func (s *Session) startHeartbeat() {
	timer, err := s.clock.newTimer()
	if err != nil {
		s.fail(fmt.Errorf("make a timer for the heartbeat: %w", err))
		return
	}
	s.beating.Go(func() { s.beat(timer) })
	s.beating.Go(func() {
		<-s.stop
		timer.Stop()
	})
}

// beat is the goroutine that sends heartbeats, until the timer is stopped or the
// session is lost.
func (s *Session) beat(timer timer) {
	for next := s.clock.now() + s.currentHeartbeat().Every; s.Err() == nil; {
		err := timer.Set(min(next, s.Deadline()))
		if err == nil {
			err = timer.Wait()
		}
		if err != nil {
			select {
			case <-s.stop: // as it should be
			default:
				s.fail(fmt.Errorf("the heartbeat's timer: %w", err))
			}
			return
		}
		if s.ExpireIfDue() {
			return
		}
		now := s.clock.now()
		if now < next {
			continue
		}
		beat := s.currentHeartbeat()
		next = now + beat.Every
		select {
		case s.onWire <- struct{}{}:
			if _, err := s.transmit(false, Request{SQL: beat.SQL, Then: beat.Heard, confirmed: beat.confirmed}); err != nil {
				return
			}
		default: // a request is under way, which is as good
		}
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
	second, heard := s.second.joined, s.heard
	s.mu.Unlock()
	switch {
	case second != nil && second.Deadline() < heard+HolderShare(s.cfg.Lease) && second.unanswered():
		return fmt.Errorf("%w: %w", s.noQuorum(), ErrSilent)
	case !s.unanswered():
		return ErrStopped
	}
	return ErrSilent
}

// unanswered says whether the server has had longer than the time between two
// heartbeats for an answer that counts.
func (s *Session) unanswered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.askedSince > s.heard && s.clock.now()-s.askedSince > BeatEvery(s.cfg.Lease)
}

// broken is the cause of the loss when the connection broke. At the deadline the guard
// shuts the connection down, possibly before this process does anything. Then the cause
// is the silence before that.
func (s *Session) broken(cause error) error {
	if s.clock.now() >= s.Deadline()-s.cfg.Lease/10 {
		return s.silence()
	}
	return cause
}
