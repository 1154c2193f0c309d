package runner

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/session"
)

// conclude turns the end of the tree into an outcome.
func (s *supervision) conclude() (Outcome, error) {
	result, ran := s.command.Result(), time.Since(s.began)
	if result.Ending == child.SocketClosed || result.Ending == child.LeaseOver {
		// The guard has noticed the loss before the session. The session will soon have the reason.
		select {
		case <-s.held.Lost():
		case <-time.After(time.Second):
		}
	}
	if slices.ContainsFunc(s.received, func(sig unix.Signal) bool { return endedBy(result.Status, sig) }) {
		s.asked |= BySignal
	}
	loss := s.loss(result)
	if loss == nil && result.Ending != child.GuardDied {
		s.cfg.Log.Info("command ended", "event", "exited", "ran", ran, "status", describeStatus(result.Status))
		return Outcome{Status: result.Status, Ran: ran, Asked: s.asked}, nil
	}
	s.cfg.Log.Info("command killed", "event", "killed", "ran", ran, "processes", result.Killed)
	if loss == nil {
		return Outcome{Asked: s.asked}, &GuardDiedError{}
	}
	if s.lost != nil { // supervise has not seen the loss
		s.logLoss("lock lost", cmp.Or(s.held.Err(), loss.Cause))
	}
	return Outcome{Asked: s.asked}, loss
}

// loss says how the lock was lost while the command ran. It is nil if the lock was not lost.
func (s *supervision) loss(result child.Result) *LockLostError {
	lost := &LockLostError{Database: session.Target(s.cfg.Session.Database)}
	var cause *session.LostError
	switch {
	case errors.As(s.held.Err(), &cause):
		lost.Cause, lost.SilentFor = cause.Cause, cause.SilentFor
	case result.Ending == child.LeaseOver:
		lost.Cause = session.ErrStopped
	case result.Ending == child.SocketClosed:
		lost.Cause = errors.New("the server closed the connection")
	default:
		return nil
	}
	lost.What = s.whatWasDone(result)
	return lost
}

// whatWasDone says what the loss of the lock did to the command.
func (s *supervision) whatWasDone(result child.Result) string {
	command := fmt.Sprintf("the command (process %d)", s.command.PID())
	killed := command + " was killed"
	if result.Killed != 1 {
		killed += fmt.Sprintf(" with all that it had started, %d processes", result.Killed)
	}
	switch {
	case result.Ending == child.GuardDied:
		return killed + " when its guard process died"
	case result.Ending == child.GuardLate:
		return killed + "; for that its guard process, which did not do so in time, was killed, too"
	case result.Killed == 0 && s.cfg.LostGrace > 0:
		return command + " ended, by itself or on the SIGTERM of --lost-grace: " + describeStatus(result.Status)
	case result.Killed == 0:
		return command + " had just ended: " + describeStatus(result.Status)
	}
	return killed
}
