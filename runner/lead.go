package runner

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/visible"
)

// Restart says after which ends of the command its node stands for election again.
type Restart string

// The values of Restart.
const (
	RestartAlways    Restart = "always"
	RestartOnFailure Restart = "on-failure" // unless it ended by itself with status 0
	RestartNever     Restart = "never"
)

// Between two starts of the command there is a pause without the lock, so that a node on
// which the command can run gets its chance. The pause doubles each time. After a command
// that has run for restartSettled, which counts as a good start, it begins anew.
// After the loss of the lock there is none: somebody else leads by now, or nobody can.
const (
	restartFirst   = time.Second
	restartMost    = time.Minute
	restartSettled = time.Minute
)

// Lead stands for election for ever, and runs the command whenever this node leads. It returns when
// a signal asks this process to end, or with the command's outcome if restart is against standing
// again. Until it has reached the database for the first time, it also returns every
// error. After that it stands again after any error, also after the loss of the lock, with one
// exception: with RestartNever it returns a child.GuardError with MayHaveRun.
//
// cfg's Splay is the longest random wait before the first candidacy. Without it the node that is
// always up first would always lead. The Wait of its Lock is not used.
func Lead(cfg Config, restart Restart) (Outcome, error) {
	p, err := newProcess(cfg.Stdin)
	if err != nil {
		return Outcome{}, err
	}
	defer p.awaitHooks(cfg.Lock.Observer)
	cfg.Lock.Wait, cfg.Lock.Endures = lock.Forever, true
	candidate := lock.NewCandidate(cfg.Lock)
	if err := p.splay(cfg); err != nil {
		return Outcome{}, err
	}
	for pause := time.Duration(0); ; {
		outcome, err := p.runOnce(cfg, candidate)
		if restart.ends(outcome, err) || err != nil && !candidate.Reached() {
			return outcome, err
		}
		pause = pauseAfter(outcome, err, pause)
		warnOfRestart(cfg.Lock.Log, outcome, err, pause)
		if err := p.sleep(cfg, pause); err != nil {
			return Outcome{}, err
		}
	}
}

// ends says whether the candidacy ends with a run that has ended like this.
func (r Restart) ends(o Outcome, err error) bool {
	switch {
	case errors.As(err, new(*InterruptedError)), o.Asked.Has(BySignal):
		return true
	case err != nil:
		return r == RestartNever && mayHaveRun(err)
	case r == RestartOnFailure:
		return !o.failed()
	}
	return r == RestartNever
}

// pauseAfter is how long to pause after a run that has ended like this. last is the pause before
// that run, or 0.
func pauseAfter(o Outcome, err error, last time.Duration) time.Duration {
	switch {
	case errors.As(err, new(*LockLostError)):
		return 0
	case o.Ran >= restartSettled:
		return restartFirst
	}
	return min(max(2*last, restartFirst), restartMost)
}

// warnOfRestart says how a run has ended, and when the next candidacy begins.
func warnOfRestart(log *slog.Logger, o Outcome, err error, pause time.Duration) {
	event, text := "standing", ""
	if err != nil {
		text = err.Error()
	} else {
		event, text = "restarting", fmt.Sprintf("the command ended after %v (%s)", o.Ran.Round(time.Millisecond), describeStatus(o.Status))
	}
	text += "; standing for election again"
	if pause > 0 {
		text += " in " + visible.Duration(pause)
	}
	log.Warn(text, "event", event)
}
