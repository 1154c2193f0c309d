package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
)

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
}

// HeldFor is how long a lock has been held, or 0 where that isn't known.
func (v View) HeldFor() time.Duration {
	if v.Since.IsZero() {
		return 0
	}
	return max(0, v.Now.Sub(v.Since))
}

// Key is the name of the lock, if its session says one of which it is. Two
// keys may come to one number, and other programs have locks of their own.
func (v View) Key() (key string, known bool) {
	scheme, ok := lockkey.SchemeByName(cmp.Or(v.Scheme, DefaultScheme))
	if !ok {
		return "", false
	}
	for _, key := range v.Keys {
		if id, err := scheme.ID(key); err == nil && id == v.ID {
			return key, true
		}
		for slot := range v.Slots + 1 {
			if id, err := scheme.Slot(key, slot); err == nil && id == v.ID {
				return key, true
			}
		}
	}
	for _, key := range v.named() {
		if id, err := scheme.ID(key); err == nil && id == v.ID {
			return key, true
		}
	}
	return "", false
}

// aside says of which lock this is a side line: one of those asked for, or one of
// whose key the session says that it is.
func (v View) aside(asked []Lock) (lockkey.ID, bool) {
	if _, itself := v.Key(); itself {
		return lockkey.ID{}, false
	}
	for _, of := range slices.Concat(asked, v.lines()) {
		for i := range sideLines {
			if lockkey.SideLine(of.ID, i) == v.ID {
				return of.ID, true
			}
		}
	}
	return lockkey.ID{}, false
}

// lines are the locks in whose queues the session may stand, as far as it says.
func (v View) lines() []Lock {
	scheme, ok := lockkey.SchemeByName(cmp.Or(v.Scheme, DefaultScheme))
	if !ok || !v.Pglead() {
		return nil
	}
	var lines []Lock
	for _, key := range slices.Concat(v.Keys, v.named()) {
		id, err := scheme.ID(key)
		if v.Slots > 0 {
			id, err = scheme.Gate(key)
		}
		if err == nil {
			lines = append(lines, Lock{ID: id})
		}
	}
	return lines
}

// DefaultScheme is that of a session that doesn't name one.
const DefaultScheme = "siphash24"

// named is the key in the name that everyone sees, which may have all of it.
func (v View) named() []string {
	name, _ := strings.CutPrefix(v.Application, "pglead:")
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

// String says who holds the lock, or waits for it.
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
	if _, known := v.Key(); v.Described && !known && len(v.Keys) > 0 {
		text += fmt.Sprintf(", for another key of the same number (%q)", strings.Join(v.Keys, ", "))
	}
	return text
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
	pg, err := pgconn.ConnectConfig(ctx, database)
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

// Locks lists who has advisory locks and who waits for them: a claim's or, if that
// has none, all of the database, or those of all databases.
func (v *Viewer) Locks(ctx context.Context, allDatabases bool, of Claim) ([]View, error) {
	rows, err := v.rows(ctx, viewQuery(allDatabases, of.withSideLines()))
	if err != nil {
		return nil, err
	}
	return parseViews(rows, of.lines())
}

func (v *Viewer) value(ctx context.Context, sql string) (string, error) {
	rows, err := v.rows(ctx, sql)
	if err != nil {
		return "", err
	}
	if len(rows) != 1 || len(rows[0]) != 1 {
		return "", unsafe("", "the server does not answer as PostgreSQL does")
	}
	return rows[0][0], nil
}

func (v *Viewer) rows(ctx context.Context, sql string) ([][]string, error) {
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
	var rows [][]string
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

// Views lists who has a claim's locks and who waits for them.
func (s *Session) Views(ctx context.Context, of Claim) ([]View, error) {
	rows, err := s.query(ctx, viewQuery(false, of.withSideLines()))
	if err != nil {
		return nil, err
	}
	return parseViews(rows, of.lines())
}

// Holders lists who has these locks. It asks the functions that viewQuery's
// views are made of: a backend in its first moments takes 2 ms for that and 5 ms
// for the views, which it has to read first, and most who ask are such.
func (s *Session) Holders(ctx context.Context, ids ...lockkey.ID) ([]View, error) {
	var locks []Lock
	for _, id := range ids {
		locks = append(locks, Lock{ID: id})
	}
	rows, err := s.query(ctx, `SELECT pg_catalog.current_database(), l.classid, l.objid, l.objsubid, l.mode, l.granted, l.pid, 0,
	pg_catalog.pg_get_userbyid(a.usesysid), pg_catalog.host(a.client_addr), a.application_name, a.query,
	a.backend_start IS NULL, extract(epoch FROM pg_catalog.clock_timestamp())
FROM pg_catalog.pg_lock_status() AS l, LATERAL pg_catalog.pg_stat_get_activity(l.pid) AS a
WHERE l.locktype = 'advisory' AND l.granted AND l.pid IS NOT NULL AND `+among(locks)+" ORDER BY l.pid")
	if err != nil {
		return nil, err
	}
	return parseViews(rows, nil)
}

// viewQuery reads two views of which every role sees who has which lock; who
// that is, in detail, is for the same role and for pg_read_all_stats to see.
func viewQuery(allDatabases bool, ids []lockkey.ID) string {
	where := ""
	switch {
	case len(ids) > 0:
		var locks []Lock
		for _, id := range ids {
			locks = append(locks, Lock{ID: id})
		}
		where = " AND " + among(locks)
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

// parseViews reads rows. Who stands in a side line waits for the lock itself; the
// first there stands in line as well.
func parseViews(rows [][]string, asked []Lock) ([]View, error) {
	var views []View
	for _, row := range rows {
		if len(row) != 14 {
			return nil, unsafe("", "the server does not answer as PostgreSQL does")
		}
		class, err1 := strconv.ParseUint(row[1], 10, 32)
		obj, err2 := strconv.ParseUint(row[2], 10, 32)
		pid, err3 := strconv.ParseUint(row[6], 10, 32)
		waiting, err4 := strconv.ParseFloat(row[7], 64)
		now, err5 := strconv.ParseFloat(row[13], 64)
		if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
			return nil, unsafe("", "the server does not answer as PostgreSQL does: %w", err)
		}
		v := View{
			Database: row[0], ID: lockkey.ID{Number: int64(class<<32 | obj), Pair: row[3] == "2"},
			Shared: strings.HasPrefix(row[4], "Share"), Granted: row[5] == "t",
			Waiting: time.Duration(waiting * float64(time.Second)), Backend: uint32(pid),
			Role: row[8], Client: row[9], Application: row[10], Hidden: row[12] == "t",
			Now: time.UnixMicro(int64(now * 1e6)),
		}
		v.Description, v.Described = parseDescription(row[11])
		if of, aside := v.aside(asked); aside {
			if v.Granted {
				continue
			}
			v.ID = of
		}
		views = append(views, v)
	}
	return views, nil
}
