package runner

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
)

// Restart says after which ends of the command its node stands for election again.
type Restart string

// The values of Restart.
const (
	RestartAlways    Restart = "always"
	RestartOnFailure Restart = "on-failure" // unless it ended by itself with status 0
	RestartNever     Restart = "never"
)

// LeadConfig is a node's candidacy.
type LeadConfig struct {
	// Config's Splay is the longest random wait before the first candidacy. Without it the node
	// that is always up first would always lead. The Wait of its Lock is not used.
	Config
	Restart Restart
}

// Between two starts of the command there is a pause without the lock, so that a node on
// which the command can run gets its chance. The pause doubles each time. After a command
// that has run for restartSettled, which counts as a good start, it begins anew.
const (
	restartFirst   = time.Second
	restartMost    = time.Minute
	restartSettled = time.Minute
)

// Lead stands for election for ever, and runs the command whenever this node leads. It returns when
// a signal asks this process to end, or with the command's outcome if cfg.Restart is against
// standing again. Until it has reached the database for the first time, it also returns every
// error. After that it stands again after any error, also after the loss of the lock, with one
// exception: with RestartNever it returns a child.GuardError with MayHaveRun.
func Lead(cfg LeadConfig) (Outcome, error) {
	p, err := begin(cfg.Config)
	if err != nil {
		return Outcome{}, err
	}
	defer p.awaitHooks(cfg.Lock.Observer)
	cfg.Lock.Wait, cfg.Lock.Endures = lock.Forever, true
	p.lossLevel = lock.LevelNotice // the next line is logged only after the waiters are told, which may take a while
	candidate := lock.NewCandidate(cfg.Lock)
	if err := p.sleep(cfg.Config, pace.Between(0, cfg.Splay)); err != nil {
		return Outcome{}, err
	}
	for pause := restartFirst; ; {
		outcome, err := p.runOnce(cfg.Config, candidate)
		switch {
		case errors.As(err, new(*InterruptedError)), outcome.Asked.Has(BySignal), err != nil && !candidate.Reached():
			return outcome, err
		case errors.As(err, new(*LockLostError)):
			// Somebody else leads by now, or nobody can: no reason to pause.
			cfg.Lock.Log.Warn(err.Error()+"; standing for election again", "event", "standing")
			cfg.CommandObserver.sayNextTry(time.Now())
			pause = restartFirst
			continue
		case err != nil && cfg.Restart == RestartNever && mayHaveRun(err):
			return outcome, err
		case err != nil:
			cfg.Lock.Log.Warn(fmt.Sprintf("%v; standing for election again in %v", err, pause), "event", "standing")
		case cfg.ends(outcome):
			return outcome, nil
		default:
			if outcome.Ran >= restartSettled {
				pause = restartFirst
			}
			cfg.Lock.Log.Warn(fmt.Sprintf("the command ended after %v (%s); standing for election again in %v",
				outcome.Ran.Round(time.Millisecond), describeStatus(outcome.Status), pause), "event", "restarting")
		}
		if err := p.sleep(cfg.Config, pause); err != nil {
			return Outcome{}, err
		}
		pause = min(2*pause, restartMost)
	}
}

// ends says whether the candidacy ends with the command.
func (cfg LeadConfig) ends(o Outcome) bool {
	switch cfg.Restart {
	case RestartNever:
		return true
	case RestartOnFailure:
		return !o.failed()
	}
	return false
}
