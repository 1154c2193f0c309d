package runner

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// skipIfBarred skips an item if the ledger keeps it from starting; otherwise it returns the error.
func (e *each) skipIfBarred(j *job, err error) error {
	log, level := j.log, slog.LevelWarn
	if e.returning { // an earlier pass has logged it
		level = slog.LevelInfo
	}
	switch {
	case errors.As(err, new(*ledger.DoneError)):
		log.Info(err.Error(), "event", "done")
		e.skip(j, alreadyDone)
		return nil
	case errors.As(err, new(*ledger.PausedError)):
		log.Log(context.Background(), level, err.Error(), "event", "paused")
		e.skip(j, paused)
		return nil
	case errors.As(err, new(*ledger.FencedError)):
		log.Log(context.Background(), level, withHint(err), "event", "ledger")
	case errors.As(err, new(*lock.LedgerError)) && session.Passing(err) && j.session.Err() == nil && e.cfg.Wait > 0:
		log.Log(context.Background(), level, withHint(err), "event", "ledger")
	default:
		return err
	}
	e.skip(j, heldElsewhere)
	return nil
}

// withHint is an error and its hint in one line.
func withHint(err error) string {
	if e := (*session.Error)(nil); errors.As(err, &e) && e.Hint != "" {
		return err.Error() + "; " + e.Hint
	}
	return err.Error()
}
