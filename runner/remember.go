package runner

import (
	"errors"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// ledger is what the ledger is to know of the keys, which those of each have.
func (cfg Config) ledger() ledger.Use {
	use := cfg.Ledger
	use.Keys = cfg.Keys
	return use
}

// ending is the end of a command, as the ledger has it. Who was asked to end may have
// left its work undone, whatever its exit status is.
func ending(o Outcome, err error) ledger.End {
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
	case o.TimedOut:
		end.Outcome = ledger.Timeout
	case o.Interrupted, o.SteppedDown:
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
func (e *each) barred(item string, s *session.Session, err error) error {
	var paused *ledger.PausedError
	switch {
	case errors.As(err, new(*ledger.DoneError)):
		e.cfg.Log.Info(err.Error(), "event", "done", "item", item)
		e.skip(item, true)
		return nil
	case errors.As(err, &paused):
		e.cfg.Log.Warn(item+" is "+err.Error(), "event", "paused", "item", item)
	case errors.As(err, new(*lock.LedgerError)) && session.Passing(err) && s.Err() == nil && e.cfg.Wait > 0:
		e.cfg.Log.Warn(err.Error(), "event", "ledger", "item", item)
	default:
		return err
	}
	e.skip(item, false)
	return nil
}
