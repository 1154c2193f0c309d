package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
)

// Sought are locks to look at, and those in whose lines others wait for them.
type Sought struct{ Locks, Lines []lockkey.ID }

// among is a condition on pg_locks: a lock of one of these numbers. That of a
// bigint has the halves in classid and objid, and objsubid 1; a pair has objsubid
// 2. Numbers in quotes are of the columns' types at once.
// https://www.postgresql.org/docs/current/view-pg-locks.html
//
// Of very many only the halves are asked for, which the server hashes: there may be
// others among the answers then.
func among(ids []lockkey.ID) string {
	const many = 100
	var list, classes, objs []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf("('%d', '%d', '%d')", id.ClassID(), id.ObjID(), id.ObjSubID()))
		classes = append(classes, fmt.Sprintf("'%d'", id.ClassID()))
		objs = append(objs, fmt.Sprintf("'%d'", id.ObjID()))
	}
	if len(ids) > many {
		return "classid IN (" + strings.Join(classes, ", ") + ") AND objid IN (" + strings.Join(objs, ", ") + ")"
	}
	return "(classid, objid, objsubid) IN (" + strings.Join(list, ", ") + ")"
}

// inThisDatabase is another: advisory locks are each database's own.
const inThisDatabase = "database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())"

// View is one session's part in one advisory lock, as the server shows it.
type View struct {
	Database string
	ID       lockkey.ID
	Shared   bool
	Granted  bool          // else it waits
	Waiting  time.Duration // for so long
	Backend  uint32        // its process number at the server
	Role     string
	Client   string // address, or empty for a unix socket
	// Application is the session's name, which everyone may see.
	Application string
	// Hidden says that this role may not see what the session says of itself.
	Hidden bool
	// Described says that the session is a pglead's.
	Described bool
	Description
	Now time.Time // of the server

	named *named // what Key says, if it is known already
}

type named struct {
	key   string
	slot  int
	known bool
}

// HeldFor is how long a lock has been held, or 0 where that isn't known.
func (v View) HeldFor() time.Duration {
	if v.Since.IsZero() {
		return 0
	}
	return max(0, v.Now.Sub(v.Since))
}

// Key is the name of the lock, if its session says one of which it is, and the
// number of the slot that it is. Two keys may come to one number, and other
// programs have locks of their own.
func (v View) Key() (key string, slot int, known bool) {
	if v.named != nil {
		return v.named.key, v.named.slot, v.named.known
	}
	return newNaming(nil).of(v)
}

// DefaultScheme is that of a session that doesn't name one.
const DefaultScheme = "siphash24"

// applied is the key in the name that everyone sees, which may have all of it.
func (v View) applied() []string {
	name, _ := strings.CutPrefix(v.Application, "pglead:")
	if rest, marked := strings.CutPrefix(name, "#"); marked { // its token comes first
		_, name, _ = strings.Cut(rest, " ")
	}
	if at := strings.LastIndex(name, "@"); at > 0 {
		return []string{name[:at]}
	}
	return nil
}

// Pglead says whether the session is, or says it is, a pglead's.
func (v View) Pglead() bool { return v.Described || strings.HasPrefix(v.Application, "pglead:") }

// Where is the host of the session, as far as it is known.
func (v View) Where() string {
	if v.Host != "" {
		return v.Host
	}
	if at := strings.LastIndex(v.Application, "@"); v.Pglead() && at >= 0 {
		return v.Application[at+1:]
	}
	return cmp.Or(v.Client, "this server's host")
}

// String says who holds the lock, or waits for it, in one line in which nothing
// that others wrote has an effect.
func (v View) String() string {
	var text string
	switch {
	case v.Described:
		text = fmt.Sprintf("%s (%s, process %d of %s)", v.Where(), v.Command, v.PID, v.User)
	case v.Pglead():
		text = fmt.Sprintf("pglead on %s (role %s)", v.Where(), v.Role)
	default:
		text = fmt.Sprintf("a program that is not pglead (role %s, application %q, backend %d)", v.Role, v.Application, v.Backend)
	}
	if v.Client != "" {
		text += " from " + v.Client
	}
	if held := v.HeldFor(); v.Granted && held > 0 {
		text += fmt.Sprintf(" since %s, for %v", v.Since.Local().Format(sinceFormat(held)), held.Round(time.Second))
	}
	if v.Note != "" {
		text += ", note: " + v.Note
	}
	if _, _, known := v.Key(); v.Described && !known && len(v.Keys) > 0 {
		text += fmt.Sprintf(", for another key of the same number (%q)", strings.Join(v.Keys, ", "))
	}
	return Visible(text)
}

// sinceFormat leaves the date away where it is today's, nearly.
func sinceFormat(ago time.Duration) string {
	if ago < 12*time.Hour {
		return time.TimeOnly
	}
	return time.DateTime
}

// Viewer is a connection to look at locks, of which it takes none. A pooler
// or a standby in between makes no difference to it, but that a standby has no
// locks to show.
type Viewer struct{ pg *pgconn.PgConn }

// OpenViewer connects. Errors are of type *Error, or ctx's.
func OpenViewer(ctx context.Context, cfg Config) (*Viewer, error) {
	database := cfg.Database.Copy()
	database.ConnectTimeout = cfg.ConnectTimeout
	database.RuntimeParams["application_name"] = cfg.ApplicationName
	pg, err := login(ctx, database)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, connectError(Target(cfg.Database), database, err)
	}
	return &Viewer{pg}, nil
}

// Close ends the connection.
func (v *Viewer) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = v.pg.Close(ctx)
}

// Locks lists who has advisory locks and who waits for them: those sought or, if
// there are none, all of the database, or those of all databases.
func (v *Viewer) Locks(ctx context.Context, allDatabases bool, of Sought) ([]View, error) {
	rows, err := v.Rows(ctx, viewQuery(allDatabases, of))
	if err != nil {
		return nil, err
	}
	return parseViews(rows, of.Lines)
}

func (v *Viewer) value(ctx context.Context, sql string) (string, error) {
	rows, err := v.Rows(ctx, sql)
	if err != nil {
		return "", err
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		return "", ErrNotPostgreSQL()
	}
	return rows[0][0], nil
}

// Rows asks one or more queries.
func (v *Viewer) Rows(ctx context.Context, sql string) (Rows, error) {
	allow(v.pg, mostAnswer)
	results, err := v.pg.Exec(ctx, sql).ReadAll()
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && passes(pgErr):
		return nil, &Error{Kind: Unreachable, err: serverRefused{pgErr}}
	case errors.As(err, &pgErr):
		return nil, &Error{Kind: Denied, err: serverRefused{pgErr}}
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, &Error{Kind: Unreachable, err: networkCause(err)}
	}
	var rows Rows
	for _, result := range results {
		for _, row := range result.Rows {
			rows = append(rows, copyRow(row))
		}
	}
	return rows, nil
}

// Terminate ends a backend, and with it its locks. The role needs to be a
// superuser, the backend's own role, or a member of pg_signal_backend.
func (v *Viewer) Terminate(ctx context.Context, pid uint32) error {
	done, err := v.value(ctx, fmt.Sprintf("SELECT pg_catalog.pg_terminate_backend(%d)", pid))
	var refused *Error
	switch {
	case errors.As(err, &refused) && refused.Kind == Denied:
		return &Error{Kind: Denied, Hint: "GRANT pg_signal_backend TO this role; a superuser's session takes a superuser",
			err: fmt.Errorf("end the session of backend %d: %w", pid, err)}
	case err == nil && done != "t":
		return &Error{Kind: Unreachable, err: fmt.Errorf("there is no session %d any more", pid)}
	}
	return err
}

// Views lists who has the locks and who waits for them.
func (s *Session) Views(ctx context.Context, of Sought) ([]View, error) {
	rows, err := s.Query(ctx, viewQuery(false, of))
	if err != nil {
		return nil, err
	}
	return parseViews(rows, of.Lines)
}

// Holders lists who has these locks. It asks the functions that viewQuery's
// views are made of: a backend in its first moments takes 2 ms for that and 5 ms
// for the views, which it has to read first, and most who ask are such.
func (s *Session) Holders(ctx context.Context, ids ...lockkey.ID) ([]View, error) {
	rows, err := s.Query(ctx, `SELECT pg_catalog.current_database(), l.classid, l.objid, l.objsubid, l.mode, l.granted, l.pid, 0,
	pg_catalog.pg_get_userbyid(a.usesysid), pg_catalog.host(a.client_addr), a.application_name, a.query,
	a.backend_start IS NULL, extract(epoch FROM pg_catalog.clock_timestamp())
FROM pg_catalog.pg_lock_status() AS l, LATERAL pg_catalog.pg_stat_get_activity(l.pid) AS a
WHERE l.locktype = 'advisory' AND l.granted AND l.pid IS NOT NULL AND `+inThisDatabase+" AND "+among(ids)+" ORDER BY l.pid")
	if err != nil {
		return nil, err
	}
	return parseViews(rows, nil)
}

// viewQuery reads two views of which every role sees who has which lock; who
// that is, in detail, is for the same role and for pg_read_all_stats to see.
func viewQuery(allDatabases bool, of Sought) string {
	where := ""
	switch {
	case len(of.Locks) > 0:
		var classes []string
		for _, id := range of.Lines {
			classes = append(classes, fmt.Sprintf("'%d'", lockkey.Ticket(id)))
		}
		where = " AND " + inThisDatabase + " AND (" + among(of.Locks) + " OR objsubid = 1 AND classid IN (" + strings.Join(classes, ", ") + "))"
	case !allDatabases:
		where = " AND d.datname = pg_catalog.current_database()"
	}
	return `SELECT d.datname, l.classid, l.objid, l.objsubid, l.mode, l.granted, l.pid,
	coalesce(extract(epoch FROM pg_catalog.clock_timestamp() - l.waitstart), 0),
	coalesce(a.usename, ''), coalesce(pg_catalog.host(a.client_addr), ''), coalesce(a.application_name, ''), coalesce(a.query, ''),
	a.backend_start IS NULL, extract(epoch FROM pg_catalog.clock_timestamp())
FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_database AS d ON d.oid = l.database
	LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory'` + where + `
ORDER BY d.datname, l.objsubid, l.classid, l.objid, l.granted DESC, l.waitstart, l.pid`
}

// parseViews reads rows. Who has a ticket waits for the lock.
func parseViews(rows Rows, asked []lockkey.ID) ([]View, error) {
	names := newNaming(asked)
	var views []View
	for _, row := range rows {
		v, err := parseView(row)
		if err != nil {
			return nil, err
		}
		key, slot, known := names.of(v)
		if of, ticket := names.line(v.ID); ticket && !known {
			// The lower half of a ticket's number is when it was drawn, in 10 ms.
			v.Waiting = max(0, time.Duration(int32(uint32(v.Now.UnixMilli()/10)-v.ID.ObjID()))*10*time.Millisecond)
			v.ID, v.Granted = of, false
			key, slot, known = names.of(v)
		}
		v.named = &named{key, slot, known}
		views = append(views, v)
	}
	return views, nil
}

// parseView reads one row.
func parseView(row []string) (View, error) {
	if len(row) != 14 {
		return View{}, ErrNotPostgreSQL()
	}
	class, err1 := strconv.ParseUint(row[1], 10, 32)
	obj, err2 := strconv.ParseUint(row[2], 10, 32)
	pid, err3 := strconv.ParseUint(row[6], 10, 32)
	waiting, err4 := parseSeconds(row[7])
	now, err5 := parseSeconds(row[13])
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return View{}, unsafe("", "the server does not answer as PostgreSQL does: %w", err)
	}
	v := View{
		Database: row[0], ID: lockkey.ID{Number: int64(class<<32 | obj), Pair: row[3] == "2"},
		Shared: strings.HasPrefix(row[4], "Share"), Granted: row[5] == "t",
		Waiting: waiting, Backend: uint32(pid),
		Role: row[8], Client: row[9], Application: row[10], Hidden: row[12] == "t",
		Now: time.Unix(0, int64(now)),
	}
	v.Description, v.Described = ParseDescription(row[11])
	return v, nil
}

// parseSeconds reads a length of time, or an instant since 1970. A step of the
// server's clock may have made it negative.
func parseSeconds(s string) (time.Duration, error) {
	seconds, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(seconds) || math.Abs(seconds) >= math.MaxInt64/float64(time.Second) {
		return 0, fmt.Errorf("%q is no number of seconds", s)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
