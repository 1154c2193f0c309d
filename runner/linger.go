package runner

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// linger keeps the lock after the command has ended: for the rest of --min-hold, or until somebody
// asks for the lock or a signal asks this process to end. It notes what has asked. A request that
// came before the command's end still decides who is to have the lock next, even if --min-hold is
// over.
func (s *supervision) linger() {
	rest := s.run.cfg.MinHold - time.Since(s.started)
	switch {
	case rest > 0:
		s.run.log.Info("holding the lock for the rest of --min-hold", "event", "lingering", "rest", rest)
		s.run.cfg.Lock.Observer.SayAlive(rest + s.run.cfg.Lock.Session.Lease)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		recorded := s.held.RecordEnd(ctx) // the end of the session ends this, too
		defer s.awaitRecord(recorded, cancel)
	case !s.held.StepDownPending():
		return
	}
	for over := time.After(rest); ; {
		select {
		case <-over:
			if !s.held.StepDownPending() {
				return
			}
			over = nil // wait for who asks: the release would have to wait for the same answer
		case <-s.held.Lost():
			return
		case request := <-s.held.StepDowns():
			s.held.Prefer(request.To)
			if rest > 0 {
				s.run.log.Warn("asked to step down by "+request.By+"; not holding the lock for the rest of --min-hold", "event", "stepping_down", "by", request.By)
			}
			s.run.asked |= ByStepDown
			return
		case sig := <-s.run.signals:
			if endsPglead(sig.(unix.Signal)) {
				s.run.asked |= BySignal
				return
			}
		}
	}
}

// awaitRecord waits until the ledger has the end, or the try has failed: for as long as the server
// may take for an answer. It calls hurry once a signal asks, or has asked, this process to end.
func (s *supervision) awaitRecord(recorded <-chan struct{}, hurry func()) {
	for {
		if s.run.asked.Has(BySignal) {
			hurry()
		}
		select {
		case <-recorded:
			return
		case sig := <-s.run.signals:
			if endsPglead(sig.(unix.Signal)) {
				s.run.asked |= BySignal
			}
		}
	}
}

// logLateLoss logs that the lock was lost after the command's end.
func (s *supervision) logLateLoss() {
	err, text := s.held.Err(), "the lock was lost after the command's end"
	if time.Since(s.started) < s.run.cfg.MinHold {
		text = "the lock was lost before --min-hold was over; another node may run the command again"
	}
	s.run.log.Warn(text+": "+err.Error(), "event", "lost", "reason", err.Error())
}
