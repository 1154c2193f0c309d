package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// Sought are the locks to look at: Locks or, if there are none, all locks of this
// database, or of all databases.
type Sought struct {
	Locks        []lockkey.ID
	Lines        []lockkey.ID // the locks in whose lines waiters for Locks stand
	Gates        []lockkey.ID // those of Locks that are gates: the first in line for slots has one
	AllDatabases bool
}

// Views lists the sessions that have the locks or wait for them.
func Views(ctx context.Context, on session.Connection, of Sought) ([]View, error) {
	rows, err := on.Query(ctx, viewQuery(of))
	if err != nil {
		return nil, err
	}
	return parseViews(rows, of)
}

// Holders lists the sessions that have these locks. It asks the functions behind viewQuery's views.
// Most sessions ask this when they are new. A new backend takes 2 ms for the functions and 5 ms for
// the views, whose definitions it has to read first.
func Holders(ctx context.Context, on session.Connection, ids ...lockkey.ID) ([]View, error) {
	rows, err := on.Query(ctx, `SELECT pg_catalog.current_database(), l.classid, l.objid, l.objsubid, l.mode, l.granted, l.pid, NULL,
	pg_catalog.pg_get_userbyid(a.usesysid), a.client_addr, a.application_name, a.query,
	a.backend_start IS NULL, pg_catalog.clock_timestamp(), a.state, a.state_change, `+instantsSQL+`
FROM pg_catalog.pg_lock_status() AS l LEFT JOIN LATERAL `+advisory.ActivityOfLockSQL+` AS a ON true
WHERE l.locktype = 'advisory' AND l.granted AND `+advisory.InThisDatabaseSQL+" AND "+advisory.AmongSQL(ids))
	if err != nil {
		return nil, err
	}
	return parseViews(rows, Sought{})
}

// Role is the name of the connection's role, as SQL writes it, for a hint.
func Role(ctx context.Context, on session.Connection) string {
	rows, err := on.Query(ctx, "SELECT pg_catalog.quote_ident(current_user)")
	row, err2 := rows.Only(1)
	if err != nil || err2 != nil {
		return "this role"
	}
	return visible.Text(row[0])
}

// mostTermination is how long Terminate waits for a backend's end.
const mostTermination = 5 * time.Second

// Terminate ends a backend, and with it its locks. The role has to be a superuser, the
// backend's own role, or a member of pg_signal_backend.
func Terminate(ctx context.Context, on session.Connection, pid uint32) error {
	rows, err := on.Query(ctx, fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d, %d)", pid, mostTermination.Milliseconds()))
	if denied, ok := errors.AsType[*session.Error](err); ok && denied.Kind == session.Denied {
		return session.Errorf(session.Denied, "GRANT pg_signal_backend TO "+Role(ctx, on)+"; a superuser's session takes a superuser",
			"end the session of backend %d: %w", pid, err)
	}
	if err != nil {
		return err
	}
	if rows.Is("t") {
		return nil
	}
	left, err := on.Query(ctx, fmt.Sprintf("SELECT 1 FROM pg_catalog.pg_stat_get_activity(%d)", pid))
	switch {
	case err != nil:
		return err
	case len(left) > 0:
		return session.Errorf(session.Unreachable, "that process of the server hangs, or is stopped: its locks stay held until it goes on",
			"end the session of backend %d: it was told to end, and has not within %s", pid, visible.Duration(mostTermination))
	}
	return session.Errorf(session.Unreachable, "", "there is no session %d any more", pid)
}

// instantsSQL is an SQL expression by which the server writes instants as parseInstant reads them,
// whatever the role's settings are: a session through a pooler has none of its own. Seconds would
// take a new backend 0.1 ms to compute.
const instantsSQL = "pg_catalog.set_config('datestyle', 'ISO', true)"

// viewQuery reads two views. They show every role which session has which lock. Only a session's
// own role, and roles with pg_read_all_stats, see its details.
func viewQuery(of Sought) string {
	where := ""
	switch {
	case len(of.Locks) > 0:
		where = " AND " + advisory.InThisDatabaseSQL + " AND (" + advisory.AmongSQL(of.Locks) +
			" OR " + advisory.IsTicketSQL + " AND " + advisory.InLinesSQL(of.Lines...) + ")"
	case !of.AllDatabases:
		where = " AND d.datname = pg_catalog.current_database()"
	}
	return `SELECT d.datname, l.classid, l.objid, l.objsubid, l.mode, l.granted, l.pid,
	l.waitstart, a.usename, a.client_addr, a.application_name, a.query,
	a.backend_start IS NULL, pg_catalog.clock_timestamp(), a.state, a.state_change, ` + instantsSQL + `
FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database
	LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory'` + where + `
ORDER BY d.datname, l.objsubid, l.classid, l.objid, l.granted DESC, l.waitstart, l.pid`
}

// parseViews reads rows. A session that has a ticket or a gate counts as a waiter for the lock.
// parseViews leaves out the mark, which has the ticket's number as a pair: it only says that the
// owner of the ticket listens.
func parseViews(rows session.Rows, of Sought) ([]View, error) {
	names := newNaming(of.Lines)
	var views []View
	for _, row := range rows {
		v, err := parseView(row)
		if err != nil {
			return nil, err
		}
		v.Granted = v.Granted && !slices.Contains(of.Gates, v.ID)
		key, slot, known := names.of(v)
		if line, ticket := names.lines[v.ID.ClassID()]; ticket && !known {
			if v.ID.Pair {
				continue
			}
			v.Waiting = advisory.TicketAge(v.ID.ObjID(), v.Now)
			v.ID, v.Granted = line, false
			key, slot, known = names.of(v)
		}
		v.named = &named{key, slot, known}
		views = append(views, v)
	}
	return views, nil
}

func parseView(row []string) (View, error) {
	if len(row) != 17 {
		return View{}, session.NotPostgreSQL()
	}
	class, err1 := strconv.ParseUint(row[1], 10, 32)
	obj, err2 := strconv.ParseUint(row[2], 10, 32)
	pid, err3 := advisory.ParseBackend(row[6])
	now, err4 := parseInstant(row[13])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return View{}, session.Errorf(session.Unsafe, "", "the server does not answer as PostgreSQL does: %w", err)
	}
	v := View{
		Database: row[0], ID: lockkey.ID{Number: int64(class<<32 | obj), Pair: row[3] == "2"},
		Shared: strings.HasPrefix(row[4], "Share"), Granted: row[5] == "t",
		Backend: pid, Role: row[8], Client: row[9], Application: row[10], Hidden: row[12] == "t" && pid != 0,
		Now: now,
	}
	if began, err := parseInstant(row[7]); err == nil {
		v.Waiting = now.Sub(began)
	}
	v.Description, v.Described = describe.Parse(row[11])
	if answered, err := parseInstant(row[15]); err == nil && strings.HasPrefix(row[14], "idle") {
		v.Idle = now.Sub(answered)
	}
	return v, nil
}

// parseInstant reads an instant in PostgreSQL's ISO style, in any time zone.
func parseInstant(text string) (instant time.Time, err error) {
	for _, offset := range []string{"-07", "-07:00", "-07:00:00"} {
		if instant, err = time.Parse("2006-01-02 15:04:05"+offset, text); err == nil {
			break
		}
	}
	return instant, err
}
