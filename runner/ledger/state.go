package ledger

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pglead/pglead/runner/session"
)

// State describes an installed ledger, also as the JSON of pglead ledger status.
type State struct {
	Version int        `json:"version"` // 0 if the ledger has lost its setting
	Keep    int        `json:"keep"`    // how many runs of each key it keeps
	Runs    int64      `json:"runs"`
	Locks   int64      `json:"locks"`
	Keys    int64      `json:"-"`
	Bytes   int64      `json:"bytes"`
	Oldest  *time.Time `json:"oldest"` // start of the oldest run; nil if there is none
	Owner   string     `json:"owner"`
	Trusted bool       `json:"trusted"`              // all roles trust it, since its owner owns the database or is a superuser
	Granted []string   `json:"granted"`              // roles with USAGE, without the owner
	Former  []string   `json:"not_granted_any_more"` // roles that have run something, and lack USAGE now
	// Published are the publications FOR ALL TABLES, which take the ledger's tables along.
	Published []string `json:"published"`
}

// ReadState asks for the state of the ledger.
func ReadState(ctx context.Context, on session.Connection) (State, error) {
	rows, err := on.Query(ctx, `SELECT version, coalesce(keep, `+strconv.Itoa(Keep)+`), (SELECT pg_catalog.count(*) FROM pglead.run), (SELECT pg_catalog.count(*) FROM pglead.lock),
	(SELECT pg_catalog.count(DISTINCT key) FROM pglead.lock),
	pg_catalog.pg_total_relation_size('pglead.run') + pg_catalog.pg_total_relation_size('pglead.lock') +
		pg_catalog.pg_total_relation_size('pglead.setting'),
	`+epoch("(SELECT pg_catalog.min(started) FROM pglead.run)")+`,
	pg_catalog.pg_get_userbyid(nspowner), pg_catalog.pg_has_role(nspowner, 'pg_database_owner', 'MEMBER'),
	pg_catalog.array_to_string(ARRAY(SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(grantee) END
		FROM pg_catalog.aclexplode(nspacl) WHERE privilege_type = 'USAGE' AND grantee <> nspowner ORDER BY 1), E'\n'),
	pg_catalog.array_to_string(ARRAY(SELECT DISTINCT r.rolname FROM pglead.lock AS l JOIN pg_catalog.pg_roles AS r ON r.rolname = l.role
		WHERE NOT pg_catalog.has_schema_privilege(r.oid, 'pglead', 'USAGE') ORDER BY 1), E'\n'),
	`+publishedSQL+`
FROM pg_catalog.pg_namespace LEFT JOIN pglead.setting ON true WHERE nspname = 'pglead'`)
	if err != nil {
		return State{}, err
	}
	row, err := rows.Only(0)
	if err != nil {
		return State{}, errAnswer
	}
	r := reader{row: row}
	s := State{Version: int(r.number()), Keep: int(r.number()), Runs: r.number(), Locks: r.number(), Keys: r.number(), Bytes: r.number()}
	if oldest := r.time(); !oldest.IsZero() {
		s.Oldest = &oldest
	}
	s.Owner, s.Trusted, s.Granted, s.Former, s.Published = r.text(), r.truth(), r.lines(), r.lines(), r.lines()
	return s, r.err
}

const publishedSQL = `pg_catalog.array_to_string(ARRAY(SELECT pubname FROM pg_catalog.pg_publication WHERE puballtables ORDER BY 1), E'\n')`

// Published lists the publications FOR ALL TABLES, which take the ledger's tables along.
func Published(ctx context.Context, on session.Connection) ([]string, error) {
	rows, err := on.Query(ctx, "SELECT "+publishedSQL)
	if err != nil {
		return nil, err
	}
	row, err := rows.Only(0)
	if err != nil {
		return nil, errAnswer
	}
	r := reader{row: row}
	return r.lines(), r.err
}

// Missing lists what the ledger lacks: tables, their primary keys, functions and the row of
// pglead.setting. So it is if another program has made a schema of that name, or a backup is
// restored in part, or without rows. forRuns are those without which runs fail. An older ledger need
// not have what only newer functions call.
func Missing(ctx context.Context, on session.Connection) (forRuns, others []string, err error) {
	rows, err := on.Query(ctx, `WITH own AS (SELECT proname, prosrc FROM pg_catalog.pg_proc WHERE pronamespace = pg_catalog.to_regnamespace('pglead')::oid)
SELECT name, use = 'run' OR EXISTS (SELECT 1 FROM own WHERE proname IN ('start_1', 'start_rest_1') AND pg_catalog.strpos(prosrc, pg_catalog.concat('pglead.', name, '(')) > 0)
FROM (VALUES ('setting', 'run'), ('lock', 'run'), ('run', 'run'), ('start_1', 'run'), ('start_rest_1', 'run'), ('finish_1', 'run'), ('tidy_1', 'run'),
	('due_1', 'call'), ('slots_1', 'call'), ('marker_1', 'call'),
	('missing_1', 'else'), ('pause_1', 'else'), ('resume_1', 'else'), ('prune_locks_1', 'else'), ('prune_runs_1', 'else'), ('fence', 'else')) AS n(name, use)
WHERE (use <> 'call' OR EXISTS (SELECT 1 FROM own WHERE pg_catalog.strpos(prosrc, pg_catalog.concat('pglead.', name, '(')) > 0))
AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_class WHERE relname = name AND relnamespace = pg_catalog.to_regnamespace('pglead')::oid
	UNION ALL SELECT 1 FROM own WHERE proname = name)
UNION ALL
SELECT pg_catalog.format('%s''s primary key', relname), relname <> 'setting' FROM pg_catalog.pg_class AS c
WHERE relnamespace = pg_catalog.to_regnamespace('pglead')::oid AND relname IN ('setting', 'lock', 'run')
	AND NOT EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = c.oid AND indisprimary AND indisvalid)`)
	for _, row := range rows {
		r := reader{row: row}
		name, to := "pglead."+r.text(), &others
		if r.truth() {
			to = &forRuns
		}
		if *to = append(*to, name); r.err != nil {
			return nil, nil, r.err
		}
	}
	if err != nil || slices.Contains(forRuns, "pglead.setting") {
		return forRuns, others, err
	}
	setting, err := on.Query(ctx, "SELECT 1 FROM pglead.setting")
	switch {
	case session.HasCode(err, session.InsufficientPrivilege): // see Unreadable
		err = nil
	case len(setting) == 0 && err == nil:
		others = append(others, "row in pglead.setting")
	}
	return forRuns, others, err
}

// Unreadable lists the tables that this role may not read. Runs write without that, by functions.
func Unreadable(ctx context.Context, on session.Connection) (tables []string, err error) {
	rows, err := on.Query(ctx, `SELECT name FROM (VALUES ('pglead.lock'), ('pglead.run'), ('pglead.setting')) AS t(name)
WHERE NOT pg_catalog.has_table_privilege(name, 'SELECT')`)
	return column(rows, err)
}

// Faults lists the missing privileges without which no run that uses the ledger starts: those of
// this role, and those of the ledger's owner, with whose rights the functions write.
func Faults(ctx context.Context, on session.Connection) ([]string, error) {
	rows, err := on.Query(ctx, `WITH functions AS (
	SELECT oid, proname, proowner FROM pg_catalog.pg_proc WHERE pronamespace = pg_catalog.to_regnamespace('pglead')::oid)
SELECT DISTINCT pg_catalog.format('%s has no %s on pglead.%s', pg_catalog.pg_get_userbyid(f.proowner), p.privilege, t.name)
FROM functions AS f, (VALUES ('lock'), ('run')) AS t(name), (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS p(privilege)
WHERE NOT pg_catalog.has_table_privilege(f.proowner, 'pglead.' || t.name, p.privilege) AND (t.name, p.privilege) <> ('run', 'UPDATE')
UNION ALL
SELECT DISTINCT pg_catalog.format('%s has no USAGE on schema pglead, with whose rights its functions run', pg_catalog.pg_get_userbyid(proowner))
FROM functions WHERE NOT pg_catalog.has_schema_privilege(proowner, 'pglead', 'USAGE')
UNION ALL
SELECT pg_catalog.format('%s has no EXECUTE on pglead.%s', current_user, f.proname)
FROM functions AS f WHERE NOT pg_catalog.has_function_privilege(f.oid, 'EXECUTE')
ORDER BY 1`)
	return column(rows, err)
}

// Alterations lists what others have added to the ledger or changed in it, so that it may not do what
// its own SQL says: a trigger can drop the row of a start, which then is not remembered.
func Alterations(ctx context.Context, on session.Connection) ([]string, error) {
	rows, err := on.Query(ctx, `WITH tables AS (
	SELECT oid, relname, relowner, relrowsecurity, relpersistence FROM pg_catalog.pg_class
	WHERE relnamespace = pg_catalog.to_regnamespace('pglead')::oid AND relname IN ('setting', 'lock', 'run')), functions AS (
	SELECT proname, proowner, prosecdef FROM pg_catalog.pg_proc WHERE pronamespace = pg_catalog.to_regnamespace('pglead')::oid)
SELECT pg_catalog.format('pglead.%s has the trigger %s', relname, tgname)
FROM pg_catalog.pg_trigger JOIN tables AS t ON t.oid = tgrelid WHERE NOT tgisinternal AND tgenabled <> 'D'
UNION ALL
SELECT pg_catalog.format('pglead.%s has the rule %s', relname, rulename)
FROM pg_catalog.pg_rewrite JOIN tables AS t ON t.oid = ev_class WHERE rulename <> '_RETURN' AND ev_enabled <> 'D'
UNION ALL
SELECT pg_catalog.format('pglead.%s has the constraint %s', relname, conname)
FROM pg_catalog.pg_constraint JOIN tables AS t ON t.oid = conrelid WHERE relname <> 'setting' AND contype NOT IN ('p', 'n')
	AND conname NOT IN ('lock_sub_check', 'lock_outcome_check') -- of an earlier version: see schema.sql
UNION ALL
SELECT pg_catalog.format('pglead.%s has row-level security', relname) FROM tables WHERE relrowsecurity
UNION ALL
SELECT pg_catalog.format('pglead.%s is unlogged: a crash of the server empties it', relname) FROM tables WHERE relpersistence = 'u'
UNION ALL
SELECT pg_catalog.format('pglead.%s is not SECURITY DEFINER', proname)
FROM functions WHERE NOT prosecdef AND proname IN ('start_1', 'start_rest_1', 'finish_1', 'tidy_1', 'missing_1', 'pause_1', 'resume_1', 'fence')
UNION ALL
SELECT pg_catalog.format('pglead.%s belongs to %s, and the schema to %s', o.name, pg_catalog.pg_get_userbyid(o.owner), pg_catalog.pg_get_userbyid(nspowner))
FROM pg_catalog.pg_namespace, (SELECT relname, relowner FROM tables UNION ALL SELECT proname, proowner FROM functions) AS o(name, owner)
WHERE nspname = 'pglead' AND o.owner <> nspowner AND NOT pg_catalog.pg_has_role(o.owner, 'pg_database_owner', 'MEMBER')
ORDER BY 1`)
	return column(rows, err)
}

// Prune forgets keys whose last run is older than this, and older runs of other keys, and returns
// how many rows it removed.
func Prune(ctx context.Context, on session.Connection, older time.Duration) (gone int64, err error) {
	for _, walk := range []struct{ function, from string }{
		{"prune_locks_1", "'-9223372036854775808', '0', '0'"},
		{"prune_runs_1", "'-9223372036854775808', '0', '-infinity', '0'"},
	} {
		for from := walk.from; from != ""; {
			rows, err := on.Query(ctx, fmt.Sprintf("SELECT * FROM pglead.%s(%s, %s)", walk.function, intervalSQL(older), from))
			if err != nil {
				return gone, err
			}
			if len(rows) != 1 {
				return gone, errAnswer
			}
			r := reader{row: rows[0][:min(1, len(rows[0]))]}
			gone += r.number()
			if r.err != nil {
				return gone, r.err
			}
			from = ""
			if after := rows[0][1:]; !slices.Contains(after, "") { // the key of the row after which to go on
				from = joined(after, ", ", quote)
			}
		}
	}
	return gone, nil
}
