package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// supervision watches over a command that runs under a lock. It listens to both, and keeps what has
// happened so far.
type supervision struct {
	run     *run
	held    heldLock // the run's
	command command  // the run's; tests replace this and held by fakes

	started time.Time // when the guard had started it

	restoreTerminal func() // to what it was before the command

	kept   []keptSignal       // signals that came while the command was being started
	onLoss func(reason error) // called at most once: when the lock is lost while the command runs

	lost       <-chan struct{}  // closed when the lock is lost; nil after lockLost
	received   []unix.Signal    // signals but TERM and INT that the command has received
	killAfter  <-chan time.Time // fires when the command's time to end is up; nil: it has no limit
	endSignal  unix.Signal      // the first that has asked the command to end
	leftovers  bool             // the command has ended, and left something running
	unkillable string           // names the processes that SIGKILL doesn't reach
}

// heldLock is what supervision needs of a *lock.Held.
type heldLock interface {
	Lost() <-chan struct{}
	Err() error
	Renewed() <-chan boottime.Instant // the session's latest deadline

	StepDownPending() bool
	StepDowns() <-chan lock.StepDown
	Prefer(host string)
	RecordEnd(ctx context.Context) (done <-chan struct{})
}

// command is what supervision needs of a *child.Child.
type command interface {
	PID() int
	Born() boottime.Instant
	Events() <-chan child.Event
	Done() <-chan struct{}
	Result() child.Result

	Signal(sig unix.Signal)
	Forward(sig unix.Signal)
	StopPglead()
	Renew(deadline boottime.Instant)
	TellLost()
	Kill()
}

// supervise watches over the lock and the command. It returns when the whole tree is dead. (After
// that linger watches over the lock alone.)
//
// When the server falls silent, this happens. The times are in leases, since the last answered
// request was sent (leasetime/leasetime.go). Each file is in this folder, or in one below it.
//
//	0    Session.answered, renew    session/wire.go               the answer moves the deadline: to
//	                                                              3/5 from its request
//	     supervise, Child.Renew     supervise.go, child/child.go  sends the deadline to the guard
//	3/5  Session.beat, ExpireIfDue  session/heartbeat.go          the deadline passes
//	     Session.fail               session/session.go            notes the reason, and closes Done
//	     lockLost, Child.TellLost   supervise.go, child/child.go  tells the guard to end the tree;
//	                                                              starts the hook --on-lost
//	     guardProcess.obey          child/guardprocess.go         begins that
//	     guardProcess.checkTime     child/guardprocess.go         the guard's own alarm, at the same
//	                                                              time: whichever is first begins it
//	     guardProcess.endForLoss    child/guardprocess_end.go     SIGTERM, if there is a grace
//	     guardProcess.killRound     child/guardprocess_end.go     SIGKILL, in rounds
//	     Child.killGuard            child/child.go                if the guard is too slow,
//	     Parent.killInPlaceOf       child/parent.go               pglead kills in its place
//	     guardProcess.reportDeath   child/guardprocess.go         reports that all are reaped
//	     Child.listen               child/child.go                closes Done
//	     conclude                   supervise.go                  turns that into a LockLostError
//	     run.finish, ReportLost     release.go, lock/report.go    tells the waiters, on a new session
//	2/3  (leasetime.DeadAfter)                                    the command is certainly dead; with
//	                                                              a lost-grace, later
//	     waiter.endSilent           lock/line_silence.go          the first in line, which has seen
//	                                                              the silence, ends the session a
//	                                                              little later (watchHolder)
//	1    (idle_session_timeout)                                   the server ends the session
//
// A request waits for its answer no longer than 3/5 of a lease either (Session.awaitAnswer).
// The guard also watches the connection itself (guardProcess.await), in case this process is
// stopped or dead. If the guard noticed the loss first, conclude finds out the reason.
func (s *supervision) supervise() (Outcome, error) {
	s.lost = s.held.Lost()
	timeout := after(s.run.cfg.Timeout)
	tick, stop := s.aliveTicks()
	defer stop()
	s.replayKept()
	for {
		s.run.cfg.Lock.Observer.SayAlive(s.run.cfg.Lock.Session.Lease)
		select {
		case <-tick: // to call SayAlive again
		case <-s.command.Done():
			s.takeRest()
			return s.conclude()
		case <-s.lost:
			s.lockLost()
		case deadline := <-s.held.Renewed():
			s.command.Renew(deadline)
		case sig := <-s.run.signals:
			s.command.Forward(sig.(unix.Signal))
			s.signalled(sig.(unix.Signal))
		case request := <-s.held.StepDowns():
			s.stepDown(request)
		case <-timeout:
			s.timeOut()
		case <-s.killAfter:
			s.kill()
		case event := <-s.command.Events():
			s.handle(event)
		}
	}
}

// aliveTicks ticks whenever SayAlive has to be called again, if anybody wants to know.
func (s *supervision) aliveTicks() (tick <-chan time.Time, stop func()) {
	if s.run.cfg.Lock.Observer.Alive == nil {
		return nil, func() {}
	}
	ticker := time.NewTicker(leasetime.BeatEvery(s.run.cfg.Lock.Session.Lease))
	return ticker.C, ticker.Stop
}

// replayKept passes on the signals that came while the command was being started. One that came
// before the command was there is sent to it in any case. A later one is forwarded, as in the
// select: the terminal may have sent it to the command, too.
func (s *supervision) replayKept() {
	for _, sig := range s.kept {
		if sig.at < s.command.Born().Add(execTime) {
			s.command.Signal(sig.Signal)
		} else {
			s.command.Forward(sig.Signal)
		}
		s.signalled(sig.Signal)
	}
}

// execTime is about the time from a process's fork to its exec. A signal that the terminal sends in
// that time kills the process, so it does no harm to send another.
const execTime = time.Millisecond

// after is the channel of a timer, or nil for 0.
func after(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}

// lockLost makes the guard end the command. It does that first, since others may get the
// lock soon.
func (s *supervision) lockLost() {
	s.lost = nil
	s.command.TellLost()
	s.logLoss("lock lost, killing the command", s.held.Err())
	if s.unkillable != "" {
		s.run.nameUnkillable(s.unkillable, true)
	}
}

// logLoss logs the loss of the lock, and calls the hook for that.
func (s *supervision) logLoss(message string, reason error) {
	s.run.log.Log(context.Background(), lock.LevelNotice, message, "event", "lost", "reason", reason.Error())
	s.onLoss(reason)
}

// signalled notes a signal that the command has received.
func (s *supervision) signalled(sig unix.Signal) {
	if !endsCommand(sig) {
		if !slices.Contains(s.received, sig) {
			s.received = append(s.received, sig)
		}
		return
	}
	s.run.asked |= BySignal
	s.endSignal = cmp.Or(s.endSignal, sig)
	s.run.cfg.CommandObserver.sayInterrupted()
	s.startKillAfter(s.run.cfg.KillAfterSignal)
}

// takeRest takes what had arrived when the tree ended. The command may have received the signals,
// too, and have ended because of them with exit status 0. Such a run is no success for --once-per.
func (s *supervision) takeRest() {
	for len(s.run.signals) > 0 {
		s.signalled((<-s.run.signals).(unix.Signal))
	}
	for len(s.command.Events()) > 0 {
		s.handle(<-s.command.Events())
	}
}

// startKillAfter starts the clock of --kill-after. A timer that already runs is left alone, since
// whoever asked first, such as systemd, relies on it.
func (s *supervision) startKillAfter(d time.Duration) {
	if s.killAfter == nil {
		s.killAfter = after(d)
	}
}

// askToEnd asks the command to end. The SIGCONT wakes a stopped command, which would not notice the
// SIGTERM.
func (s *supervision) askToEnd(by Asked) {
	s.run.asked |= by
	s.endSignal = cmp.Or(s.endSignal, unix.SIGTERM)
	s.command.Signal(unix.SIGTERM)
	s.command.Signal(unix.SIGCONT)
}

func (s *supervision) stepDown(request lock.StepDown) {
	s.askToEnd(ByStepDown)
	s.held.Prefer(request.To)
	s.run.log.Warn("asked to step down by "+request.By+"; sending SIGTERM", "event", "stepping_down", "by", request.By)
	s.startKillAfter(s.run.cfg.KillAfterSignal)
}

func (s *supervision) timeOut() {
	s.askToEnd(ByTimeout)
	s.run.log.Error(fmt.Sprintf("the command ran for all of the %s that --timeout allows; sending SIGTERM", visible.Duration(s.run.cfg.Timeout)), "event", "timeout")
	s.startKillAfter(s.run.cfg.KillAfterTimeout)
}

func (s *supervision) kill() {
	s.killAfter = nil
	s.command.Kill()
	text := "the command did not end after " + unix.SignalName(s.endSignal) + "; killing it and all that it started"
	if s.leftovers {
		text = "what the command left running does not end; killing it"
	}
	s.run.log.Error(text, "event", "killed")
}

// handle acts on what has happened to the command's processes.
func (s *supervision) handle(event child.Event) {
	s.leftovers = s.leftovers || event.Leftovers != ""
	switch {
	case event.Stopped:
		s.command.StopPglead()
	case event.Unkillable != "":
		s.unkillable = event.Unkillable
		s.run.nameUnkillable(s.unkillable, s.held.Err() != nil)
	case event.Leftovers != "" && s.run.cfg.WaitForLeftovers:
		s.run.log.Info("the command has ended; waiting for what it left running: "+event.Leftovers, "event", "leftovers")
	case event.Leftovers != "":
		s.run.log.Error("the command has ended; ending what it left running: "+event.Leftovers, "event", "leftovers")
	}
}

// nameUnkillable names processes that can't be killed.
func (r *run) nameUnkillable(names string, lost bool) {
	consequence := "the lock stays held while they live"
	if lost {
		consequence = "the lock is lost: another node may run the command while they live"
	}
	r.log.Error("these processes can't be killed, and "+consequence+": "+names, "event", "unkillable")
}

// reasonPatience is how long, at most, the session takes to have the reason of a loss that the
// guard has noticed.
const reasonPatience = time.Second

// conclude turns the end of the tree into an outcome.
func (s *supervision) conclude() (Outcome, error) {
	result, ran := s.command.Result(), time.Since(s.started)
	if result.Ending != child.Exited || result.Status.Signaled() {
		s.restoreTerminal()
	}
	if (result.Ending == child.SocketClosed || result.Ending == child.LeaseOver) && s.held.Err() == nil {
		// The guard has noticed the loss before the session. The session will soon have the reason.
		select {
		case <-s.held.Lost():
		case <-time.After(reasonPatience):
		}
	}
	if slices.ContainsFunc(s.received, func(sig unix.Signal) bool { return diedOf(result.Status, sig) }) {
		s.run.asked |= BySignal
	}
	loss := s.loss(result)
	if loss == nil && result.Ending != child.GuardDied {
		s.run.log.Info("command ended", "event", "exited", "ran", ran, "status", describeStatus(result.Status))
		return Outcome{Status: result.Status, Ran: ran, Asked: s.run.asked}, nil
	}
	s.run.log.Info("command killed", "event", "killed", "ran", ran, "processes", result.Killed)
	if loss == nil {
		return Outcome{Ran: ran, Asked: s.run.asked}, child.ErrGuardDied
	}
	if s.lost != nil { // supervise has not seen the loss
		s.logLoss("lock lost", cmp.Or(s.held.Err(), loss.Cause))
	}
	return Outcome{Asked: s.run.asked}, loss
}

// loss says how the lock was lost while the command ran. It is nil if the lock was not lost.
func (s *supervision) loss(result child.Result) *LockLostError {
	lost := &LockLostError{Database: session.Target(s.run.cfg.Lock.Session.Database)}
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
	case result.Ending == child.GuardDied && result.Killed == 0:
		return command + " was dead when its guard process died"
	case result.Ending == child.GuardLate && result.Killed == 0:
		return command + " was dead; its guard process, which did not say so in time, was killed"
	case result.Ending == child.GuardDied:
		return killed + " when its guard process died"
	case result.Ending == child.GuardLate:
		return killed + "; for that its guard process, which did not do so in time, was killed, too"
	case result.Killed == 0 && s.run.cfg.Lock.LostGrace > 0:
		return command + " ended, by itself or on the SIGTERM of --lost-grace: " + describeStatus(result.Status)
	case result.Killed == 0:
		return command + " had just ended: " + describeStatus(result.Status)
	}
	return killed
}
