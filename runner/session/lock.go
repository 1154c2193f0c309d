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
	row, err := s.rowWithin(ctx, atMost, 1, fmt.Sprintf(`DO $pglead$ BEGIN
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
	AND pid = pg_catalog.pg_backend_pid() AND %s)`, sameLock(id))
}

// sameLock is a condition on pg_locks. Advisory locks are each database's own.
func sameLock(id lockkey.ID) string {
	return fmt.Sprintf(`classid = %d AND objid = %d AND objsubid = 1
	AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`, id.ClassID(), id.ObjID())
}

// Confirm makes sure that a granted lock is one that the server knows of
// (there are servers that grant everything and lock nothing), draws the
// fencing token and announces that the command starts. Its one round trip is
// what the first Deadline counts from.
func (s *Session) Confirm(ctx context.Context, id lockkey.ID, lostGrace time.Duration) (Grant, error) {
	if s.cfg.Quorum {
		if err := s.joinQuorum(ctx); err != nil {
			return Grant{}, err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.lease*2/heartbeatsPerLease, errNoQuorum)
		defer cancel()
	}
	row, err := s.row(ctx, 6, s.confirmation(id, lostGrace, "true"))
	if err != nil {
		return Grant{}, lockError(id, err)
	}
	if row[0] != "t" {
		return Grant{}, unsafe("only PostgreSQL's own advisory locks exclude anyone",
			"the server granted lock %d but does not list it in pg_locks", id)
	}
	if s.now() >= s.Deadline() { // the disk took longer than the lease has
		s.fail(ErrSilent)
		return Grant{}, s.Err()
	}
	number, err := strconv.ParseInt(row[1], 10, 64)
	if err != nil {
		return Grant{}, unsafe("", "the server's token %q is no number", row[1])
	}
	return Grant{Token: number, SystemID: row[2]}, nil
}

// confirmation is Confirm's query. It does something only if the session holds
// the lock and wanted is true.
//
// A transaction number is only used up for good once the WAL that tells of it
// is on disk. That takes something to log, the message, and a commit that waits
// for the disk but for no standby, whatever the role's default is: 'local';
// with a quorum, one that waits for them too: 'on'.
func (s *Session) confirmation(id lockkey.ID, lostGrace time.Duration, wanted string) string {
	commit := "local"
	if s.cfg.Quorum {
		commit = "on"
	}
	return fmt.Sprintf(`SELECT held,
	CASE WHEN held THEN %[7]s END,
	(SELECT system_identifier FROM pg_catalog.pg_control_system()),
	CASE WHEN held THEN pg_catalog.pg_notify('%[1]s', 'started ' || %[7]s || ' %[2]d %[3]d') END,
	CASE WHEN held THEN pg_catalog.set_config('synchronous_commit', '%[4]s', true) END,
	CASE WHEN held THEN pg_catalog.pg_logical_emit_message(true, 'pglead', '') END
FROM (SELECT %[5]s AND %[6]s AS held OFFSET 0) AS looked`,
		channel(id), s.lease.Milliseconds(), lostGrace.Milliseconds(), commit, wanted, held(id), token)
}

// token is an SQL expression. It is the same number wherever it stands in a
// transaction.
const token = "(" + timeline + " << 48 | pg_catalog.pg_current_xact_id()::text::bigint)"

// Clean is the holder's last word: that its command is dead. It precedes the
// lock's release, in a transaction of its own, so that a waiter hears it with
// its grant; where nobody waits nothing is said, since NOTIFY has a cost for
// the whole server.
type Clean struct {
	Token     int64
	LostGrace time.Duration
}

// Unlock gives the lock back; when it returns nil another session can have it.
// clean is nil where no command was started.
func (s *Session) Unlock(ctx context.Context, id lockkey.ID, clean *Clean) error {
	var queries []string
	if clean != nil {
		queries = append(queries, fmt.Sprintf(`SELECT pg_catalog.pg_notify('%s', 'clean %d %d %d') WHERE EXISTS
	(SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND NOT granted AND %s)`,
			channel(id), clean.Token, s.lease.Milliseconds(), clean.LostGrace.Milliseconds(), sameLock(id)))
	}
	rows, err := s.query(ctx, append(queries, fmt.Sprintf("SELECT pg_catalog.pg_advisory_unlock(%d)", id))...)
	if err != nil {
		return lockError(id, err)
	}
	if len(rows) == 0 || rows[len(rows)-1][0] != "t" {
		return fmt.Errorf("release lock %d: the server says that the session did not hold it", id)
	}
	return nil
}

// Ping asks the server for a sign of life, which the Deadline counts from.
func (s *Session) Ping(ctx context.Context) error {
	_, err := s.query(ctx, heartbeat)
	return err
}

// row asks a question that has one row of so many columns for an answer.
func (s *Session) row(ctx context.Context, columns int, sql string) ([]string, error) {
	return s.rowWithin(ctx, 0, columns, sql)
}

// rowWithin is row for a question that the server may take longer over.
func (s *Session) rowWithin(ctx context.Context, longer time.Duration, columns int, sql string) ([]string, error) {
	ex, err := s.send(ctx, sql)
	if err != nil {
		return nil, err
	}
	rows, err := s.answer(ctx, ex, longer)
	if err != nil {
		return nil, err
	}
	if s.cfg.Quorum && ex.unconfirmed != "" {
		return nil, &Error{Kind: Unreachable, err: fmt.Errorf("the commit was not confirmed: %s", ex.unconfirmed)}
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
