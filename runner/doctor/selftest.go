package doctor

import (
	"context"
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
	cfg := lock.Config{Claim: lock.Claim{IDs: []lockkey.ID{lockkey.SipHash24(key)}}, Session: of, Description: says}
	cfg.Session.Comment = cfg.Describe().Comment()
	cfg.Session.LoginQuestion = ledger.Use{Mode: ledger.Auto}.QuestionSQL(of.Transaction) // so that the login is that of a run
	s, b, granted, err := bidInOwnSession(ctx, cfg)
	if err != nil {
		return checkup.Check{}, err
	}
	defer s.Close()
	if !granted {
		return checkup.Failf("only PostgreSQL's own advisory locks will do", "the server refused a lock that nobody can have"), nil
	}
	held, err := b.Settle(ctx)
	if err != nil {
		return checkup.Check{}, err
	}
	second, _, granted, err := bidInOwnSession(ctx, cfg)
	if err != nil {
		return checkup.Warningf("is there a connection free for a second one?",
			"granted, listed in pg_locks, token %d; whether it keeps others out was not tried: %s", held.Token, err), nil
	}
	second.Close()
	if granted {
		return checkup.Failf("only PostgreSQL's own advisory locks will do", "the server granted one lock to two sessions"), nil
	}
	return checkup.Okf("granted, listed in pg_locks, token %d, refused to a second session", held.Token), held.Release(ctx)
}

// bidInOwnSession makes a bid in its own session. The caller closes the session.
func bidInOwnSession(ctx context.Context, cfg lock.Config) (s *session.Session, b *lock.Bid, granted bool, err error) {
	if s, err = session.Open(ctx, cfg.Session); err != nil {
		return nil, nil, false, err
	}
	s.StartHeartbeat()
	b = lock.NewBid(s, cfg, false)
	if granted, err = b.Try(ctx); err != nil {
		s.Close()
	}
	return s, b, granted, err
}
