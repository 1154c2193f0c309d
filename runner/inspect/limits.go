package inspect

import (
	"context"

	"github.com/pglead/pglead/runner/session"
)

// Limits are how many connections a server allows to ordinary roles, to this role, and to
// this database.
type Limits struct {
	Server         int
	role, database int // -1: none
}

// Room is how many connections the tightest limit leaves.
type Room struct {
	Free, Of int
	Whose    string // server, role or database
}

// ReadLimits asks for the limits, without the connections that are reserved for superusers.
func ReadLimits(ctx context.Context, on session.Connection) (Limits, error) {
	n, err := numbers(ctx, on, `SELECT pg_catalog.current_setting('max_connections')::int - pg_catalog.current_setting('superuser_reserved_connections')::int
		- coalesce(pg_catalog.current_setting('reserved_connections', true)::int, 0),
	(SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = session_user),
	(SELECT datconnlimit FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())`)
	return Limits{Server: n[0], role: n[1], database: n[2]}, err
}

// Room says how many connections are free. It asks the functions behind the views, since a new
// backend would have to read the views' definitions first.
func (l Limits) Room(ctx context.Context, on session.Connection) (Room, error) {
	ofRole, ofDatabase := "0", "0"
	if l.role >= 0 {
		ofRole = "(SELECT count(*) FROM pg_catalog.pg_stat_get_activity(NULL) WHERE usesysid = " +
			"(SELECT usesysid FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())))"
	}
	if l.database >= 0 {
		ofDatabase = "(SELECT pg_catalog.pg_stat_get_db_numbackends(oid) FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"
	}
	n, err := numbers(ctx, on, "SELECT (SELECT sum(pg_catalog.pg_stat_get_db_numbackends(oid)) FROM pg_catalog.pg_database), "+ofRole+", "+ofDatabase)
	room := Room{l.Server - n[0], l.Server, "server"}
	if l.database >= 0 && l.database-n[2] < room.Free {
		room = Room{l.database - n[2], l.database, "database"}
	}
	if l.role >= 0 && l.role-n[1] < room.Free {
		room = Room{l.role - n[1], l.role, "role"}
	}
	return room, err
}

// numbers asks a question whose answer is three whole numbers.
func numbers(ctx context.Context, on session.Connection, sql string) (n [3]int, err error) {
	rows, err := on.Query(ctx, sql)
	if err != nil {
		return n, err
	}
	list, err := rows.Ints(len(n))
	copy(n[:], list)
	return n, err
}
