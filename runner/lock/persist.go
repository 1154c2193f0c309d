package lock

import (
	"context"
	"errors"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/pace"
	"github.com/pglead/pglead/runner/session"
)

// answered notes that this database can be one to wait for.
func (cfg *Config) answered() {
	cfg.Observer.away(nil)
	if cfg.Reached != nil {
		*cfg.Reached = true
	}
}

// Between attempts to connect a waiter pauses for a random part of a backoff
// that doubles, so that a server that comes up again isn't run over.
const (
	backoffFirst = 200 * time.Millisecond
	backoffMost  = 5 * time.Second
)

// Persist does what may fail for reasons that pass by themselves: a server that
// restarts, has no room, or is a standby until it is promoted, and the loss of the
// own session meanwhile. A run that waits rides these out. When the time is up the
// last obstacle is the error.
func (cfg *Config) Persist(ctx context.Context, try func(left func() time.Duration) error) error {
	began := time.Now()
	left := func() time.Duration {
		if cfg.Wait == Forever {
			return Forever
		}
		return cfg.Wait - time.Since(began)
	}
	backoff, crowded := pace.Doubling(backoffFirst, backoffMost), pace.Doubling(crowdedFirst, crowdedMost)
	for {
		cfg.Observer.alive(cfg.AttemptMost())
		err := try(left)
		if err == nil {
			cfg.Observer.away(nil)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var rest time.Duration
		if isFull(err) && cfg.Wait > 0 {
			most := crowded.Next()
			// The last moment is as good as any for the last try.
			rest = min(pace.Between(most/8, most), max(left()-time.Second, time.Second/2))
		} else {
			rest = backoff.Half()
		}
		persists := session.Passing(err) || cfg.Reached != nil && *cfg.Reached
		if !persists || left() <= rest {
			return err
		}
		cfg.Observer.away(err)
		cfg.Log.Info("waiting for the database", "event", "waiting", "reason", err.Error(), "retry_in", rest)
		if !pace.Sleep(ctx, rest) {
			return context.Cause(ctx)
		}
	}
}

// AttemptMost is more than one attempt can take: the connection to each host, a
// second one, the lock-delay, and some questions, each of which has less than the lease.
func (cfg *Config) AttemptMost() time.Duration {
	hosts := 1 + len(cfg.Session.Database.Fallbacks)
	return time.Duration(hosts+1)*cfg.Session.ConnectTimeout + cfg.LockDelay + 4*cfg.Session.Lease
}

// session is how a session is opened.
func (cfg *Config) session() session.Config {
	of := cfg.Session
	of.Comment = cfg.Description.Comment()
	return of
}

// Open opens a session for a run that may wait for that long. A server without
// room, as when a thousand nodes fire at once, is asked again by a run that doesn't
// wait for the lock, for as long as one attempt to connect may take. One that waits
// comes back later.
func (cfg *Config) Open(ctx context.Context, left time.Duration) (*session.Session, error) {
	of := cfg.session()
	of.Probe = cfg.Ledger.Probe(of.Transaction)
	if cfg.Wait > 0 {
		of.ConnectTimeout = min(of.ConnectTimeout, max(left, time.Second))
	}
	began, backoff := time.Now(), pace.Doubling(fullFirst, fullMost)
	for {
		s, err := session.Open(ctx, of)
		if err == nil {
			if _, err = cfg.Ledger.Found(s.Probed()); err != nil {
				s.Close()
				return nil, err
			}
		}
		if err == nil || cfg.Wait > 0 || !isFull(err) {
			return s, err
		}
		rest := backoff.Half()
		if time.Since(began)+rest > of.ConnectTimeout {
			return nil, err
		}
		if !pace.Sleep(ctx, rest) {
			return nil, context.Cause(ctx)
		}
	}
}

// WarnOfForeignLedger says that the database's ledger is one that can't be trusted,
// and whether it did.
func (cfg *Config) WarnOfForeignLedger(s *session.Session) (warned bool) {
	foreign := cfg.Ledger.Foreign(s.Probed())
	if foreign {
		cfg.Log.Warn(ledger.Untrusted+"; going on without a ledger", "event", "ledger")
	}
	return foreign
}

// A server that is full has room again when one of its hundred sessions is done,
// which is soon. But each refusal leaves a line in its log.
const (
	fullFirst = 50 * time.Millisecond
	fullMost  = time.Second
)

func isFull(err error) bool {
	var refused *session.Error
	return errors.As(err, &refused) && refused.Full
}
