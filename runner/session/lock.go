package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
)

// Grant is what the server says of a lock that the session now holds.
type Grant struct {
	// Token grows with every grant in this cluster: the timeline in the upper
	// 16 bits, the transaction number that this grant used up in the lower 48.
	Token int64
	// SystemID names the cluster that the token belongs to.
	SystemID string
}

// TryLock takes the lock if nobody has it. It doesn't wait.
func (s *Session) TryLock(ctx context.Context, id lockkey.ID) (bool, error) {
	row, err := s.row(ctx, 1, fmt.Sprintf("SELECT pg_catalog.pg_try_advisory_lock(%d)", id))
	if err != nil {
		return false, lockError(id, err)
	}
	return row[0] == "t", nil
}

// WaitLock stands in the server's queue for the lock, for at most the given
// time, and says whether it was granted.
//
// The time is a lock_timeout inside of a statement that traps it: it ends the
// wait without an error line in the server's log, and the statement's snapshot,
// which holds back vacuum and CREATE INDEX CONCURRENTLY, never gets older than
// it. The trap may also be sprung after the grant, so what counts is pg_locks.
func (s *Session) WaitLock(ctx context.Context, id lockkey.ID, atMost time.Duration) (bool, error) {
	row, err := s.row(ctx, 1, fmt.Sprintf(`DO $pglead$ BEGIN
	PERFORM pg_catalog.set_config('lock_timeout', '%d', true);
	PERFORM pg_catalog.pg_advisory_lock(%d);
EXCEPTION WHEN lock_not_available THEN NULL; END $pglead$;
SELECT %s`, max(1, atMost.Milliseconds()), id, held(id)))
	if err != nil {
		return false, lockError(id, err)
	}
	return row[0] == "t", nil
}

// CanQueue says whether an error of WaitLock leaves the queue as a way to
// wait. It is none where the role may not use plpgsql.
func CanQueue(err error) bool {
	var pgErr *pgconn.PgError
	return !errors.As(err, &pgErr) || pgErr.Code != "42501" && pgErr.Code != "42704"
}

// Retryable says that the server withdrew a waiting request for reasons that
// have nothing to do with this lock: a deadlock among others, in which it
// picked this session, or an administrator's pg_cancel_backend.
func Retryable(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "40P01" || pgErr.Code == "57014")
}

// held is an SQL expression: whether this session has the lock. The lock of a
// bigint has the halves in classid and objid, and objsubid 1.
// https://www.postgresql.org/docs/current/view-pg-locks.html
func held(id lockkey.ID) string {
	return fmt.Sprintf(`EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted
	AND pid = pg_catalog.pg_backend_pid() AND classid = %d AND objid = %d AND objsubid = 1)`, id.ClassID(), id.ObjID())
}

// Confirm makes sure that a granted lock is one that the server knows of
// (there are servers that grant everything and lock nothing) and draws the
// fencing token. Its one round trip is what the first Deadline counts from.
func (s *Session) Confirm(ctx context.Context, id lockkey.ID) (Grant, error) {
	// A transaction number is only used up for good once the WAL that tells of
	// it is on disk. That takes something to log, the message, and a commit
	// that waits for the disk but for no standby, whatever the role's default
	// is: 'local'.
	row, err := s.row(ctx, 6, fmt.Sprintf(`SELECT pg_catalog.set_config('synchronous_commit', 'local', true),
	%s,
	pg_catalog.pg_current_xact_id(),
	pg_catalog.pg_logical_emit_message(true, 'pglead', ''),
	pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8),
	(SELECT system_identifier FROM pg_catalog.pg_control_system())`, held(id)))
	if err != nil {
		return Grant{}, lockError(id, err)
	}
	if row[1] != "t" {
		return Grant{}, unsafe("only PostgreSQL's own advisory locks exclude anyone",
			"the server granted lock %d but does not list it in pg_locks", id)
	}
	xid, err := strconv.ParseInt(row[2], 10, 64)
	if err != nil {
		return Grant{}, unsafe("", "the server's transaction number %q is no number", row[2])
	}
	timeline, err := strconv.ParseInt(row[4], 16, 64)
	if err != nil {
		return Grant{}, unsafe("", "the server's timeline %q is no number", row[4])
	}
	return Grant{Token: timeline<<48 | xid, SystemID: row[5]}, nil
}

// Unlock gives the lock back; when it returns nil another session can have it.
func (s *Session) Unlock(ctx context.Context, id lockkey.ID) error {
	row, err := s.row(ctx, 1, fmt.Sprintf("SELECT pg_catalog.pg_advisory_unlock(%d)", id))
	if err != nil {
		return lockError(id, err)
	}
	if row[0] != "t" {
		return fmt.Errorf("release lock %d: the server says that the session did not hold it", id)
	}
	return nil
}

// row asks a question that has one row of so many columns for an answer.
func (s *Session) row(ctx context.Context, columns int, sql string) ([]string, error) {
	rows, err := s.query(ctx, sql)
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) != columns {
		return nil, unsafe("", "the server does not answer as PostgreSQL does")
	}
	return rows[0], nil
}

func lockError(id lockkey.ID, err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && !isLost(err) {
		return &Error{Kind: Denied, err: fmt.Errorf("lock %d: %w", id, serverRefused{pgErr})}
	}
	return err
}

func isLost(err error) bool {
	var lost *LostError
	return errors.As(err, &lost)
}

type serverRefused struct{ pg *pgconn.PgError }

func (e serverRefused) Error() string { return serverSays(e.pg) }
func (e serverRefused) Unwrap() error { return e.pg }
