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
	Heard func([]Rows) // is given the answer, as a Request's Then; may be nil
}

// BeatEvery is how often the holder of a lock asks: it leaves room for two lost
// heartbeats in a holder's share.
func BeatEvery(lease time.Duration) time.Duration { return lease / heartbeatsPerLease }

// Beat has the session's heartbeat be this one, from the next on.
func (s *Session) Beat(h Heartbeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pace = h
}

func (s *Session) beatsAt() Heartbeat {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pace
}

// Keep starts the heartbeat, without which a held lock outlives neither the
// lease nor a silent network unnoticed. Nothing but Close ends it.
func (s *Session) Keep() { s.keepOnce.Do(s.keep) }

func (s *Session) keep() {
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
	for next := s.clock.now() + s.beatsAt().Every; s.Err() == nil; {
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
		pace := s.beatsAt()
		next = now + pace.Every
		select {
		case s.turn <- struct{}{}:
			if _, err := s.transmit(false, Request{SQL: pace.SQL, Then: pace.Heard}); err != nil {
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
	quorum, heard := s.quorum, s.heard
	s.mu.Unlock()
	switch {
	case quorum != nil && quorum.Deadline() < heard+HolderShare(s.lease) && quorum.unanswered():
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
	return s.asked > s.heard && s.clock.now()-s.asked > s.lease/heartbeatsPerLease
}

// broken is the cause of a loss with the connection. At the deadline the guard
// shuts that down, and it may be the first to do anything then.
func (s *Session) broken(cause error) error {
	if s.clock.now() >= s.Deadline()-s.lease/10 {
		return s.silence()
	}
	return cause
}
