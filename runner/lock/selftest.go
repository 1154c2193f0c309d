package lock

import (
	"context"
	"math/rand/v2"
	"strconv"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/session"
)

// SelfTest takes a lock that nobody else has, and sees whether a second session is
// refused it.
func SelfTest(ctx context.Context, of session.Config, says inspect.Description) (checkup.Check, error) {
	key := "pglead doctor " + strconv.FormatUint(rand.Uint64(), 36)
	says.Keys, says.Scheme = []string{key}, inspect.DefaultScheme
	cfg := Config{Claim: Claim{Locks: []Lock{{ID: lockkey.SipHash24(key)}}}, Session: of, Description: says}
	b, granted, err := bidInOwnSession(ctx, cfg)
	if err != nil {
		return checkup.Check{}, err
	}
	defer b.s.Close()
	if !granted {
		return checkup.Failf("only PostgreSQL's own advisory locks will do", "the server refused a lock that nobody can have"), nil
	}
	held, err := b.Settle(ctx)
	if err != nil {
		return checkup.Check{}, err
	}
	second, granted, err := bidInOwnSession(ctx, cfg)
	if err != nil {
		return checkup.Warningf("is there a connection free for a second one?",
			"granted, listed in pg_locks, token %d; whether it keeps others out was not tried: %s", held.Token, err), nil
	}
	second.s.Close()
	if granted {
		return checkup.Failf("only PostgreSQL's own advisory locks will do", "the server granted one lock to two sessions"), nil
	}
	return checkup.Okf("granted, listed in pg_locks, token %d, refused to a second session", held.Token), held.Release(ctx)
}

// bidInOwnSession is a bid in a session of its own.
func bidInOwnSession(ctx context.Context, cfg Config) (*Bid, bool, error) {
	s, err := session.Open(ctx, cfg.session())
	if err != nil {
		return nil, false, err
	}
	s.StartHeartbeat()
	b := NewBid(s, cfg, false)
	granted, err := b.Try(ctx)
	if err != nil {
		s.Close()
	}
	return b, granted, err
}
