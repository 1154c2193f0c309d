package lock

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/session"
)

// trySQLInTransaction is an SQL expression that takes the locks until the transaction
// ends: all of them, counted up to the first that is not free, or with a gate one of
// them, for there is no line before a pooler.
func (c Claim) trySQLInTransaction() string {
	if c.Gate != nil {
		return tryEach(c.Locks, Lock.tryInTransaction)
	}
	return tryAll(c.Locks, Lock.tryInTransaction)
}

// fulfils says whether so many locks, or the one at that place, are all that is asked for.
func (c Claim) fulfils(n int) bool { return n == len(c.Locks) || c.Gate != nil && n > 0 }

// tryInTransaction begins the transaction that holds the locks.
//
// First the same trial is made in a statement by itself, which gives back what it
// is granted. One that is refused, as nearly all of many waiters' are, then costs
// the pooler no connection for as long as this process takes to say ROLLBACK, and no
// second login. Of one that isn't, the command is made ready while there is more to
// ask for.
func (b *Bid) tryInTransaction(ctx context.Context) (bool, error) {
	n, err := b.trialled(ctx)
	if err != nil {
		return false, err
	}
	if !b.cfg.Claim.fulfils(n) {
		b.await()
		return false, nil
	}
	b.preparation.begin()
	// What the token is drawn on is there before the lock is held.
	err = b.cfg.askForRoom(ctx, func() error {
		_, err := b.s.Second(ctx)
		return err
	})
	if err != nil {
		return false, err
	}
	n, err = b.beginTransaction(ctx)
	if err != nil {
		return false, err
	}
	if b.cfg.Claim.fulfils(n) {
		b.s.SetHolding(true)
		return b.granted(n)
	}
	b.await()
	_, err = b.s.Query(ctx, "ROLLBACK")
	return false, b.error(err)
}

// beginTransaction makes the trial in a transaction, and learns where that is, and how
// old that server is, for behind a pooler it may have come up since the login. All of it
// is one message, for each is one more for the pooler to pass on.
func (b *Bid) beginTransaction(ctx context.Context) (n int, err error) {
	trial := "SELECT " + identity + ", " + session.ServerAge + ", " + b.trySQL()
	rows, err := b.s.Query(ctx, strings.Join(append(b.s.Begin(), trial), "; "))
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && strings.Contains(pgErr.Message, "statement pooling"):
		return 0, session.Errorf(session.Unsafe, "pool_mode has to be transaction or session", "the pooler allows no transaction: %s", session.ServerSays(pgErr))
	case err != nil:
		return 0, b.error(err)
	case len(rows) == 0 || len(rows[len(rows)-1]) != 4:
		return 0, session.ErrNotPostgreSQL()
	}
	row := rows[len(rows)-1]
	if err := b.identified(row); err != nil {
		return 0, err
	}
	if err := b.s.SetServerAge(row[2]); err != nil {
		return 0, err
	}
	return lastNumber(session.Rows{row[3:]})
}
