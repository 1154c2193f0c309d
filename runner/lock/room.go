package lock

import (
	"context"

	"github.com/pglead/pglead/runner/session"
)

// A waiter is a guest in somebody's database, whose own logins come first. On a server
// with few free connections the waiters at the end of the line give theirs back, and come
// again later. The first in line never does.

// room is what is known of the server's free connections.
type room struct{ limits *limits }

// limits are of connections, as the server sets them for this role and database.
type limits struct{ server, role, database int }

// errCrowded says that a connection was given back to a server with few left.
var errCrowded = session.Crowded("few connections are free: giving this one back while others wait in line, and coming again")

// check is errCrowded if this session's connection is one of too many.
func (r *room) check(ctx context.Context, l *line, found *look) error {
	free, of, err := r.free(ctx, l.b)
	if err != nil {
		return err
	}
	if MayStay(l.rank, found.waiting, free, of) {
		return nil
	}
	return errCrowded
}

// free is how many connections ordinary roles can still open, and of how many.
func (r *room) free(ctx context.Context, b *Bid) (free, of int, err error) {
	if r.limits == nil {
		if r.limits, err = readLimits(ctx, b); err != nil {
			return 0, 0, err
		}
	}
	counts := "(SELECT sum(pg_catalog.pg_stat_get_db_numbackends(oid)) FROM pg_catalog.pg_database)"
	if r.limits.database >= 0 {
		counts += ", (SELECT pg_catalog.pg_stat_get_db_numbackends(oid) FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
	} else {
		counts += ", 0"
	}
	if r.limits.role >= 0 {
		counts += ", (SELECT count(*) FROM pg_catalog.pg_stat_get_activity(NULL) WHERE usesysid = (SELECT usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())))"
	} else {
		counts += ", 0"
	}
	n, err := b.numbers(ctx, 3, "SELECT "+counts)
	if err != nil {
		return 0, 0, err
	}
	free, of = r.limits.server-n[0], r.limits.server
	if limit := r.limits.database; limit >= 0 && limit-n[1] < free {
		free, of = limit-n[1], limit
	}
	if limit := r.limits.role; limit >= 0 && limit-n[2] < free {
		free, of = limit-n[2], limit
	}
	return free, of, nil
}

// readLimits asks for the limits. Connections that are reserved for superusers don't
// count; -1 is no limit.
func readLimits(ctx context.Context, b *Bid) (*limits, error) {
	n, err := b.numbers(ctx, 3, `SELECT pg_catalog.current_setting('max_connections')::int - pg_catalog.current_setting('superuser_reserved_connections')::int
		- coalesce(pg_catalog.current_setting('reserved_connections', true)::int, 0),
	(SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = session_user),
	(SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`)
	if err != nil {
		return nil, err
	}
	return &limits{server: n[0], role: n[1], database: n[2]}, nil
}

// numbers asks a question whose answer is one row of so many whole numbers.
func (b *Bid) numbers(ctx context.Context, columns int, sql string) ([]int, error) {
	rows, err := b.s.Query(ctx, sql)
	if err != nil {
		return nil, b.error(err)
	}
	return rows.Ints(columns)
}
