package ledger

import (
	"context"
	"strings"
	"time"
)

// State is what an installed ledger is like.
type State struct {
	Version int
	Keep    int // runs of each key
	Runs    int64
	Locks   int64
	Bytes   int64
	Oldest  time.Time // that a run of it started; zero if there is none
	Owner   string
	Trusted bool     // by all, since the owner is the database's, or a superuser
	Granted []string // roles with USAGE, the owner left out
}

// ReadState counts what the ledger has.
func ReadState(ctx context.Context, ask Ask) (State, error) {
	rows, err := ask(ctx, `SELECT version, keep, (SELECT pg_catalog.count(*) FROM pglead.run), (SELECT pg_catalog.count(*) FROM pglead.lock),
	pg_catalog.pg_total_relation_size('pglead.run') + pg_catalog.pg_total_relation_size('pglead.lock'),
	`+epoch("(SELECT pg_catalog.min(started) FROM pglead.run)")+`, pg_catalog.pg_get_userbyid(nspowner), pg_catalog.pg_has_role(nspowner, 'pg_database_owner', 'MEMBER'),
	pg_catalog.array_to_string(ARRAY(SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE pg_catalog.pg_get_userbyid(grantee) END
		FROM pg_catalog.aclexplode(nspacl) WHERE privilege_type = 'USAGE' AND grantee <> nspowner ORDER BY 1), E'\n')
FROM pglead.setting, pg_catalog.pg_namespace WHERE nspname = 'pglead'`)
	if err != nil {
		return State{}, err
	}
	if len(rows) != 1 {
		return State{}, errAnswer
	}
	r := reader{row: rows[0]}
	s := State{Version: int(r.number()), Keep: int(r.number()), Runs: r.number(), Locks: r.number(), Bytes: r.number(), Oldest: r.time(), Owner: r.text(), Trusted: r.truth()}
	if granted := r.text(); granted != "" {
		s.Granted = strings.Split(granted, "\n")
	}
	return s, r.err
}

// Prune forgets keys whose last run is so long ago, and says how many runs that were.
func Prune(ctx context.Context, ask Ask, older time.Duration) (int64, error) {
	rows, err := ask(ctx, "SELECT pglead.prune_1("+interval(older)+")")
	if err != nil || len(rows) != 1 {
		return 0, err
	}
	r := reader{row: rows[0]}
	return r.number(), r.err
}
