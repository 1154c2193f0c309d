package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// Restart says after which end of the command its leader stands again.
type Restart string

// The values of Restart.
const (
	RestartAlways    Restart = "always"
	RestartOnFailure Restart = "on-failure" // unless its exit status is 0
	RestartNever     Restart = "never"
)

// LeadConfig is a node's candidacy.
type LeadConfig struct {
	Config // whose Wait is without meaning

	// FirstDelay is the most that is waited, at random, before the first
	// candidacy: else the node that is always up first always leads.
	FirstDelay time.Duration
	Restart    Restart
}

// Between two starts of the command lies a pause that doubles, without the
// lock, so that a node on which the command can run gets its chance. A command
// that has run for restartSettled is taken to have started well.
const (
	restartFirst   = time.Second
	restartMost    = time.Minute
	restartSettled = time.Minute
)

// Lead stands for election for ever, and runs the command whenever this node
// leads. It returns when a signal asks this process to end, and that is the
// only way but for what cfg.Restart ends: then the outcome is the command's.
// What is wrong before the database was reached for the first time is an
// error too; from then on everything is ridden out.
func Lead(cfg LeadConfig) (Outcome, error) {
	signals, err := cfg.begin()
	if err != nil {
		return Outcome{}, err
	}
	defer cfg.hooks.Wait()

	reached := false
	cfg.Wait, cfg.reached = lock.Forever, &reached
	if err := rest(cfg.Config, signals, pace.Between(0, cfg.FirstDelay)); err != nil {
		return Outcome{}, err
	}
	for pause := restartFirst; ; pause = min(2*pause, restartMost) {
		outcome, err := once(cfg.Config, signals)
		cfg.Session.Database = session.Elsewhere(cfg.Session.Database, err)
		switch {
		case errors.As(err, new(*InterruptedError)), outcome.Interrupted, err != nil && !reached:
			return outcome, err
		case errors.As(err, new(*LostError)):
			// Somebody else leads by now, or nobody can: no reason to pause.
			cfg.Log.Warn(err.Error()+"; standing for election again", "event", "standing")
			pause = restartFirst / 2
			cfg.Watch.resting(pause)
			continue
		case err != nil:
			cfg.Log.Warn(fmt.Sprintf("%v; standing for election again in %v", err, pause), "event", "standing")
		case cfg.ends(outcome):
			return outcome, nil
		default:
			if outcome.Ran >= restartSettled {
				pause = restartFirst
			}
			cfg.Log.Warn(fmt.Sprintf("the command ended after %v (%s); standing for election again in %v",
				outcome.Ran.Round(time.Millisecond), describeStatus(outcome.Status), pause), "event", "restarting")
		}
		if err := rest(cfg.Config, signals, pause); err != nil {
			return Outcome{}, err
		}
	}
}

// ends says whether the end of the command is that of the candidacy.
func (cfg LeadConfig) ends(o Outcome) bool {
	switch cfg.Restart {
	case RestartNever:
		return true
	case RestartOnFailure:
		return !o.TimedOut && !o.Status.Signaled() && o.Status.ExitStatus() == 0
	}
	return false
}

// rest waits, with no lock held, unless a signal asks this process to end.
func rest(cfg Config, signals <-chan os.Signal, d time.Duration) error {
	locking := cfg.locking()
	cfg.Watch.resting(d)
	cfg.Watch.alive(d + locking.AttemptMost())
	ctx, early := interruptible(signals)
	defer early.handOver()
	if d > 0 && !pace.Sleep(ctx, d) {
		return context.Cause(ctx)
	}
	return nil
}
