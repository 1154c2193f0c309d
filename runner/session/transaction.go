package session

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// With Config.Transaction a transaction has the locks. It is open from Begin until a request
// that has a COMMIT or a ROLLBACK among its queries. Any other end of it is a loss.

// Begin begins the transaction, evaluates in it the SQL expression take, which takes the locks, and
// returns its value. The session also learns on which server it is, and how old that is: behind a
// pooler it may be another one than at the login, or may have started since.
//
// All of it is one message, since the pooler passes each message on by itself.
func (s *Session) Begin(ctx context.Context, take string) (value string, err error) {
	columns := "pg_catalog.pg_backend_pid(), " + ServerIdentitySQL + ", " + serverAgeSQL + ", " + take
	rows, err := s.Query(ctx, strings.Join(append(s.cfg.BeginQueries(), "SELECT "+columns), "; "))
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && strings.Contains(pgErr.Message, "statement pooling"):
		return "", unfit("pool_mode has to be transaction or session", "the pooler allows no transaction: %s", ServerSays(pgErr))
	case err != nil:
		return "", err
	case len(rows) == 0 || len(rows[len(rows)-1]) != 4:
		return "", NotPostgreSQL()
	}
	row := rows[len(rows)-1]
	pid, err := strconv.ParseUint(row[0], 10, 32)
	if err != nil {
		return "", NotPostgreSQL()
	}
	age, err := parseAge(row[2])
	if err != nil {
		return "", err
	}
	s.pid.Store(uint32(pid))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server.identity, s.server.began = row[1], s.clock.now().Add(-age)
	return row[3], nil
}

// BeginQueries are the queries that begin the transaction. Its isolation level, read committed,
// keeps no snapshot between two heartbeats: a snapshot would hold back vacuum. It may write,
// whatever the role's default is: at its end the caller may note how the command ended.
func (cfg Config) BeginQueries() []string {
	return []string{
		"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		OwnNames,
		"SELECT " + setSQL(true, append(cfg.settings(),
			[2]string{"lock_timeout", "0"}, // an error would free the lock
			[2]string{"idle_in_transaction_session_timeout", milliseconds(cfg.Lease)})) +
			andSQL + noTransactionTimeoutSQL,
	}
}

// endsTransaction says whether one of a request's queries ends a transaction.
func endsTransaction(queries []string) bool {
	return slices.Contains(queries, "COMMIT") || slices.Contains(queries, "ROLLBACK")
}

// transactionTimeout is a setting of PostgreSQL 17 and later. It would end the transaction that
// holds a lock, or a statement that takes longer. The version that a pooler reports at the login
// may not be the server's.
const transactionTimeout = "transaction_timeout"

// noTransactionTimeoutSQL is an SQL expression that turns transactionTimeout off for the
// transaction, if the server has that setting.
const noTransactionTimeoutSQL = "CASE WHEN pg_catalog.current_setting('" + transactionTimeout + "', true) IS NULL THEN ''" +
	" ELSE pg_catalog.set_config('" + transactionTimeout + "', '0', true) END"

// EndSilentQuery is a query after which the server ends the transaction's session once it has heard
// nothing of it for so long. Otherwise the transaction may stay open for any time, whatever the
// role's settings are.
func EndSilentQuery(silence time.Duration) string {
	return "SELECT " + setSQL(true, [][2]string{{"idle_in_transaction_session_timeout", milliseconds(silence)}}) + andSQL + noTransactionTimeoutSQL
}

// transactionOver is the cause of the loss if the transaction that held the lock has ended, by an
// error of the server's unless that is nil.
func transactionOver(pgErr *pgconn.PgError) error {
	if pgErr == nil {
		return errors.New("the transaction that held the lock was ended")
	}
	return errors.New("the transaction that held the lock failed: " + ServerSays(pgErr))
}
