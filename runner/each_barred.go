package runner

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

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
