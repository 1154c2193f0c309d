package runner

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/ledger"
)

// Outcome is the end of a command that ran.
//
// A run that got its lock ends in one of these ways. The third column is what the ledger notes
// (endOf, endUnstarted), the last one the exit status (package cmd, exit.go).
//
//	the command                outcome, error                    noted               exit status
//	ended by itself            Outcome                           ok, failed, killed  its own
//	was asked to end, by a     Outcome, with Asked               stopped             its own
//	signal or by stepdown
//	ran into --timeout         Outcome, with Asked               timeout             124
//	was killed at a loss       LockLostError                     lost                76
//	died with its guard,       child.GuardError,                 killed              70
//	or was perhaps started     with MayHaveRun
//	can't be executed          child.LookupError                 failed              126, 127
//	was not started: a signal  InterruptedError                  stopped             that of the signal
//	… the lock was lost, or    session.LostError,                stopped             69
//	the lease over             child.ErrLeaseOver
//	… the guards were killed,  child.ErrNotStarted, or the       stopped             70
//	or can't be started        host's error
type Outcome struct {
	Status unix.WaitStatus
	Ran    time.Duration // 0 if the lock was lost, or the command was not started
	Asked  Asked         // what has asked the command, or this run before or after it, to end
}

// failed says whether a command failed. A command that was asked to end counts as failed, whatever
// its exit status is, since it may have left its work undone.
func (o Outcome) failed() bool { return o.Asked != 0 || o.badStatus() }

func (o Outcome) badStatus() bool { return o.Status.Signaled() || o.Status.ExitStatus() != 0 }

// diedOf says whether a command has died of a signal or, as a Java virtual machine does, exited
// because of it.
func diedOf(status unix.WaitStatus, sig unix.Signal) bool {
	return status.Signaled() && status.Signal() == sig || status.ExitStatus() == signalBase+int(sig)
}

// signalBase + N is the exit status that shells give to a command that has died of signal N.
const signalBase = 128

// endOf is the end of a command in the ledger's terms. A command that was asked to end may
// not have done its work, whatever its exit status is.
func endOf(o Outcome, err error) ledger.End {
	end := ledger.End{At: time.Now()}
	switch {
	case errors.As(err, new(*LockLostError)):
		end.Outcome = ledger.Lost
		return end
	case err != nil:
		end.Outcome = ledger.Killed
		return end
	}
	status := o.Status.ExitStatus()
	if o.Status.Signaled() {
		status = signalBase + int(o.Status.Signal())
	}
	end.Status = &status
	switch {
	case o.Asked.Has(ByTimeout):
		end.Outcome = ledger.Timeout
	case o.Asked.Has(BySignal), o.Asked.Has(ByStepDown):
		end.Outcome = ledger.Stopped
	case o.Status.Signaled():
		end.Outcome = ledger.Killed
	case status != 0:
		end.Outcome = ledger.Failed
	default:
		end.Outcome = ledger.OK
	}
	return end
}

// endUnstarted is the end, in the ledger's terms, of a run whose command was not started, or
// perhaps not.
func endUnstarted(err error) ledger.End {
	end := ledger.End{At: time.Now(), Outcome: ledger.Stopped}
	var lookup *child.LookupError
	switch {
	case errors.As(err, &lookup):
		status := lookup.ExitStatus()
		end.Outcome, end.Status = ledger.Failed, &status
	case mayHaveRun(err):
		end.Outcome = ledger.Killed
	}
	return end
}

// mayHaveRun says whether the command ran, or may have run, before an error other than the loss of
// the lock.
func mayHaveRun(err error) bool {
	var guard *child.GuardError
	return errors.As(err, &guard) && guard.MayHaveRun
}

// Asked is the set of what has asked a command to end: a second one may ask before it has ended.
// With ByTimeout the run counts as timed out, and otherwise as stopped.
type Asked uint8

// What may ask.
const (
	ByTimeout  Asked = 1 << iota
	BySignal         // this process was asked to end
	ByStepDown       // this process was asked to release the lock
)

// Has says whether one of these has asked.
func (a Asked) Has(by Asked) bool { return a&by != 0 }

// InterruptedError says that a signal came before the command started, or has ended a list.
type InterruptedError struct {
	Signal unix.Signal
	OfList bool // the signal has ended a list, and reached the commands that ran
}

func (e *InterruptedError) Error() string {
	text := "interrupted by " + unix.SignalName(e.Signal)
	if e.OfList {
		return text
	}
	return text + " before the command started"
}

// LockLostError says that the lock was lost while the command ran, and that the
// command is dead.
type LockLostError struct {
	Database  string
	Cause     error
	SilentFor time.Duration // how long before the loss the lock was last certainly held
	What      string        // what was done to the command; empty in the error of a list
}

func (e *LockLostError) Error() string {
	heard := ""
	if e.SilentFor > 0 {
		heard = fmt.Sprintf(" (last known held %v before)", e.SilentFor.Round(time.Millisecond))
	}
	text := fmt.Sprintf("the lock in %s was lost%s: %v", e.Database, heard, e.Cause)
	if e.What != "" {
		text += "; " + e.What
	}
	return text
}

func (e *LockLostError) Unwrap() error { return e.Cause }

func describeStatus(status unix.WaitStatus) string {
	if status.Signaled() {
		return unix.SignalName(status.Signal())
	}
	return "exit status " + strconv.Itoa(status.ExitStatus())
}
