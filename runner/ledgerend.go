package runner

import (
	"time"

	"github.com/pglead/pglead/runner/ledger"
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
