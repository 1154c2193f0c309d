package runner

import (
	"context"
	"errors"
	"log/slog"
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
	log := e.cfg.Log.With("item", j.item)
	switch {
	case errors.As(err, new(*ledger.DoneError)):
		log.Info(err.Error(), "event", "done")
		e.skip(j, doneElsewhere)
		return nil
	case errors.As(err, new(*ledger.PausedError)):
		level := slog.LevelWarn
		if e.returning { // it has been said
			level = slog.LevelInfo
		}
		log.Log(context.Background(), level, err.Error(), "event", "paused")
		e.skip(j, paused)
		return nil
	case errors.As(err, new(*ledger.FencedError)):
		log.Warn(err.Error(), "event", "ledger")
	case errors.As(err, new(*lock.LedgerError)) && session.Passing(err) && j.session.Err() == nil && e.cfg.Wait > 0:
		log.Warn(err.Error(), "event", "ledger")
	default:
		return err
	}
	e.skip(j, heldElsewhere)
	return nil
}
