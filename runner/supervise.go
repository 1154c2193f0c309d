package runner

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/session"
)

// events are what a command's supervision hears of beside the command itself
// and the end of the session.
type events struct {
	signals <-chan os.Signal
	renewed <-chan time.Duration // the session's latest deadline

	stepDown <-chan struct{}     // somebody asks for it,
	asker    func(chan<- string) // and this finds out who

	early  *early      // has the signals until the command runs; nil: they have been left to come
	missed []os.Signal // those that came while the command was being started

	lost func(reason error) // is called after the order to kill the command
}

// linger keeps the lock of a command that has ended for as long as it says, or
// until a signal asks this process to end.
func linger(cfg Config, log *slog.Logger, s *session.Session, signals <-chan os.Signal, d time.Duration) {
	if d <= 0 {
		return
	}
	log.Info("holding the lock for the rest of --min-hold", "event", "lingering", "rest", d)
	cfg.Watch.alive(d + cfg.Session.Lease)
	over := time.After(d)
	for {
		select {
		case <-over:
			return
		case <-s.Lost():
			log.Warn("the lock was lost before --min-hold was over; another node may run the command again: "+s.Err().Error(), "event", "lost")
			return
		case sig := <-signals:
			if child.Interrupts(sig.(unix.Signal)) {
				return
			}
		}
	}
}

// supervise is where the lock's fate and the command's meet. It returns when
// the whole tree is dead.
func supervise(cfg Config, log *slog.Logger, began time.Time, s *session.Session, c *child.Child, ev events) (Outcome, error) {
	timeout := after(cfg.Timeout)
	lost := s.Lost()
	var killAfter <-chan time.Time
	var timedOut, interrupted, asked bool
	asker := make(chan string, 1)
	var unkillable string
	var tick <-chan time.Time
	if cfg.Watch.Alive != nil {
		ticker := time.NewTicker(cfg.Session.Lease / 5)
		defer ticker.Stop()
		tick = ticker.C
	}
	heed := func(sig unix.Signal) {
		if !child.Interrupts(sig) {
			return
		}
		interrupted = true
		cfg.Watch.ending()
		if killAfter == nil {
			killAfter = after(cfg.KillAfterSignal)
		}
	}
	for _, sig := range ev.missed {
		c.Signal(sig.(unix.Signal)) // it may not have heard the terminal's either
		heed(sig.(unix.Signal))
	}
	for {
		cfg.Watch.alive(cfg.Session.Lease)
		select {
		case <-tick: // to say that
		case <-c.Done():
			outcome, err := conclude(cfg, log, began, s, c)
			if lost != nil && errors.As(err, new(*LostError)) { // the guard was faster
				log.Info("lock lost", "event", "lost", "reason", err.Error())
				ev.lost(err)
			}
			outcome.TimedOut, outcome.Interrupted, outcome.SteppedDown = timedOut, interrupted, asked
			return outcome, err

		case <-lost:
			lost = nil
			c.Lose()
			log.Info("lock lost, killing the command", "event", "lost", "reason", s.Err().Error())
			ev.lost(s.Err())
			if unkillable != "" {
				complain(log, s, unkillable)
			}

		case deadline := <-ev.renewed:
			c.Renew(deadline)

		case sig := <-ev.signals:
			c.Forward(sig.(unix.Signal))
			heed(sig.(unix.Signal))

		case <-ev.stepDown:
			ev.stepDown = nil // once is enough
			go ev.asker(asker)

		case by := <-asker:
			asked = true
			c.Signal(unix.SIGTERM)
			c.Signal(unix.SIGCONT)
			log.Warn("asked to step down by "+by+"; sending SIGTERM", "event", "stepping_down", "by", by)
			if killAfter == nil {
				killAfter = after(cfg.KillAfterSignal)
			}

		case <-timeout:
			timedOut, timeout = true, nil
			c.Signal(unix.SIGTERM)
			c.Signal(unix.SIGCONT)
			log.Warn(fmt.Sprintf("the command ran for all of the %v that --timeout allows; sending SIGTERM", cfg.Timeout), "event", "timeout")
			killAfter = after(cfg.KillAfterTimeout)

		case <-killAfter:
			killAfter = nil
			c.Kill()
			log.Warn("the command did not end after SIGTERM; killing it and all that it started", "event", "killed")

		case event := <-c.Events():
			report(log, cfg, s, c, event)
			unkillable = cmp.Or(event.Unkillable, unkillable)
		}
	}
}

// after is a timer's channel; none at all for 0.
func after(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}

func report(log *slog.Logger, cfg Config, s *session.Session, c *child.Child, event child.Event) {
	switch {
	case event.Stopped != 0:
		c.StopWith()
	case event.Unkillable != "":
		complain(log, s, event.Unkillable)
	case event.Leftovers != "" && cfg.WaitForLeftovers:
		log.Info("the command has ended; waiting for what it left running: "+event.Leftovers, "event", "leftovers")
	case event.Leftovers != "":
		log.Warn("the command has ended; ending what it left running: "+event.Leftovers, "event", "leftovers")
	}
}

// complain names the processes that SIGKILL doesn't reach.
func complain(log *slog.Logger, s *session.Session, processes string) {
	consequence := "the lock stays held while they live"
	if s.Err() != nil {
		consequence = "the lock is lost: another node may run the command while they live"
	}
	log.Error("these processes can't be killed, and "+consequence+": "+processes, "event", "unkillable")
}

// conclude turns the end of the tree into an outcome.
func conclude(cfg Config, log *slog.Logger, began time.Time, s *session.Session, c *child.Child) (Outcome, error) {
	result := c.Result()
	ran := time.Since(began)
	if result.Ending == child.SocketClosed || result.Ending == child.LeaseOver {
		// The guard was faster than the session, which has the reason.
		select {
		case <-s.Lost():
		case <-time.After(time.Second):
		}
	}
	err := lossOf(cfg, s, c)
	if err == nil && result.GuardDied {
		err = &GuardDiedError{Killed: result.Killed}
	}
	if err != nil {
		log.Info("command killed", "event", "killed", "ran", ran, "processes", result.Killed)
		return Outcome{}, err
	}
	log.Info("command ended", "event", "exited", "ran", ran, "status", describeStatus(result.Status))
	return Outcome{Status: result.Status, Ran: ran}, nil
}

// lossOf says how the lock was lost while the command ran, or nil.
func lossOf(cfg Config, s *session.Session, c *child.Child) error {
	result := c.Result()
	lost := &LostError{Database: session.Target(cfg.Session.Database), What: fmt.Sprintf("the command (process %d) was killed with all that it had started, %d processes", c.PID(), result.Killed)}
	if result.Killed == 1 {
		lost.What = fmt.Sprintf("the command (process %d) was killed", c.PID())
	}
	switch {
	case result.GuardDied:
		lost.What += "; for that its guard process, which did not do so in time, was killed, too"
	case result.Killed == 0:
		lost.What = fmt.Sprintf("the command (process %d) had just ended: %s", c.PID(), describeStatus(result.Status))
	}
	var cause *session.LostError
	switch {
	case errors.As(s.Err(), &cause):
		lost.Cause, lost.Heard = cause.Cause, cause.Heard
	case result.Ending == child.LeaseOver:
		lost.Cause = session.ErrStopped
	case result.Ending == child.SocketClosed:
		lost.Cause = errors.New("the server closed the connection")
	default:
		return nil
	}
	return lost
}
