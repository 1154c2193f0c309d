package runner

import (
	"errors"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// endOf is the end of a command, as the ledger has it. One that was asked to end may
// have left its work undone, whatever its exit status is.
func endOf(o Outcome, err error) ledger.End {
	end := ledger.End{At: time.Now()}
	if err != nil {
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

// signalBase and a signal's number are the status of a command that it ended, as
// shells have it.
const signalBase = 128

// barred skips an item that the ledger keeps from starting, or returns the error.
func (e *each) barred(j *job, err error) error {
	var paused *ledger.PausedError
	switch {
	case errors.As(err, new(*ledger.DoneError)):
		e.cfg.Log.Info(err.Error(), "event", "done", "item", j.item)
		e.skip(j, true)
		return nil
	case errors.As(err, &paused):
		e.cfg.Log.Warn(j.item+" is "+err.Error(), "event", "paused", "item", j.item)
	case errors.As(err, new(*lock.LedgerError)) && session.Passing(err) && j.session.Err() == nil && e.cfg.Wait > 0:
		e.cfg.Log.Warn(err.Error(), "event", "ledger", "item", j.item)
	default:
		return err
	}
	e.skip(j, false)
	return nil
}
