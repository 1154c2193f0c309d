package doctor

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// selfTest takes a lock that nobody else has, and checks that a second session can't have
// it.
func selfTest(ctx context.Context, of session.Config, says describe.Description) (checkup.Check, error) {
	key := "pglead doctor " + strconv.FormatUint(rand.Uint64(), 36)
	says.Keys, says.Scheme = []string{key}, lockkey.DefaultScheme
	cfg := lock.Config{
		Claim: lock.Claim{IDs: []lockkey.ID{lockkey.SipHash24(key)}}, Session: of, Description: says, Log: slog.New(slog.DiscardHandler),
	}
	cfg.Session.LoginQuestion = ledger.Use{Mode: ledger.Auto}.QuestionSQL(of.Transaction) // so that the login is that of a run
	held, err := lock.NewCandidate(cfg).Acquire(ctx, nil)
	switch {
	case errors.As(err, new(*lock.ConflictError)):
		return checkup.Failf("only PostgreSQL's own advisory locks will do", "the server refused a lock that nobody can have"), nil
	case err != nil:
		return checkup.Check{}, err
	}
	defer held.Close()
	second, err := lock.NewCandidate(cfg).Acquire(ctx, nil)
	switch {
	case err == nil:
		second.Close()
		return checkup.Failf("only PostgreSQL's own advisory locks will do", "the server granted one lock to two sessions"), nil
	case !errors.As(err, new(*lock.ConflictError)):
		return checkup.Warningf("is there a connection free for a second one?",
			"granted, listed in pg_locks, token %d; whether it keeps others out was not tried: %s", held.Token, err), nil
	}
	return checkup.Okf("granted, listed in pg_locks, token %d, refused to a second session", held.Token), held.Release(ctx)
}
