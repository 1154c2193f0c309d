// Package ledger speaks with a database that remembers its runs: for each lock how its last run
// ended, and a history. Somebody has to install that once.
//
// In the ledger a row says whether the last run's command may be alive. Without a ledger a waiter
// has to hear that from others. The database decides everything, in the functions of the .sql
// files, while the run has the lock.
package ledger

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

//go:embed schema.sql start.sql fence.sql keep.sql
var files embed.FS

// schema is all the SQL to install, tables first.
func schema() string {
	var all []string
	for _, name := range []string{"schema.sql", "start.sql", "fence.sql", "keep.sql"} {
		text, _ := files.ReadFile(name) // the file is part of the program
		all = append(all, string(text))
	}
	return strings.Join(all, "\n")
}

// Version is the schema's version. Functions carry it in their names.
//
// Runs of several versions of pglead share a ledger, and install runs all of the SQL again. So a
// new column is added to existing tables, too (see the DO block in schema.sql), and no column is
// removed. A function whose arguments or result change gets a new name; the old one stays for as
// long as older versions may call it. TestInstallOverOlder installs over what an older version has
// left.
const Version = 1

// Keep is how many runs of a key a ledger keeps by default.
const Keep = 1000

// Plan says how to install a ledger.
type Plan struct {
	Keep      int  // how many runs of each key it keeps; 0 leaves an existing setting as it is
	Published bool // although publications FOR ALL TABLES take its tables along
}

// installing is the SQL of Install.
func (p Plan) installing() string {
	keep, kept, before := p.Keep, "excluded.keep", unpublished
	if keep == 0 {
		keep, kept = Keep, "s.keep"
	}
	if p.Published {
		before = ""
	}
	return fmt.Sprintf(`%s%s%s
INSERT INTO pglead.setting AS s (version, keep) VALUES (%d, %d)
ON CONFLICT (one) DO UPDATE SET version = greatest(s.version, excluded.version), keep = %s;
`, oneByOne, before, schema(), Version, keep, kept)
}

// oneByOne makes installs wait for each other: several nodes may be set up at the same time.
const oneByOne = `SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('pglead ledger install', 0));

`

// unpublished fails if tables would be made that a publication takes along. It is SQL, since users
// also run what InstallSQL returns.
const unpublished = `-- A publication FOR ALL TABLES takes new tables along. A subscriber that lacks them applies nothing any more.
DO $$ DECLARE names text := (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(pubname), ', ' ORDER BY pubname)
	FROM pg_catalog.pg_publication WHERE puballtables);
BEGIN
	IF names IS NOT NULL AND (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class WHERE relname IN ('setting', 'lock', 'run')
			AND relnamespace = pg_catalog.to_regnamespace('pglead')::oid) < 3 THEN
		RAISE EXCEPTION USING ERRCODE = '` + WouldBePublished + `', HINT = '` + PublishedHint + `',
			MESSAGE = pg_catalog.concat('not made, since the database is published FOR ALL TABLES, by ', names, ': a subscriber without these tables would stop');
	END IF;
END $$;

`

// WouldBePublished is the code of the error of an Install that would make tables that are published.
const WouldBePublished = "LE002"

// PublishedHint says what to do then.
const PublishedHint = "publish FOR TABLES IN SCHEMA (PostgreSQL 15) or tables by name; " +
	"or first, at each subscriber: pglead ledger install, and TRUNCATE pglead.setting; then install here with --published"

// InstallSQL is what Install sends, for users who want to read it first.
func InstallSQL(p Plan) string {
	return "BEGIN;\n" + session.OwnNames + ";\n\n" + p.installing() + "\nCOMMIT;\n"
}

// Install makes the ledger, or its missing parts. The role needs CREATE on the database, and nothing
// else.
func Install(ctx context.Context, on session.Connection, p Plan) error {
	_, err := on.Query(ctx, p.installing()) // one transaction
	return err
}

// uninstalling removes the ledger's own objects, those of earlier versions too, and then the schema.
// CASCADE would also remove what others have made: their views of the runs, or tables in a schema of
// that name which they had before. The tables are named in the order in which the functions lock
// them, since another order could end in a deadlock with a run.
const uninstalling = `DROP TABLE IF EXISTS pglead.lock, pglead.run, pglead.setting;
DO $$ DECLARE own text := (SELECT pg_catalog.string_agg(oid::pg_catalog.regprocedure::text, ', ') FROM pg_catalog.pg_proc
	WHERE pronamespace = pg_catalog.to_regnamespace('pglead')::oid AND proname IN ('due_1', 'fence', 'finish_1', 'marker_1', 'missing_1', 'pause_1',
		'prune_1', 'prune_locks_1', 'prune_runs_1', 'resume_1', 'slots_1', 'start_1', 'start_rest_1', 'tidy_1'));
BEGIN IF own IS NOT NULL THEN EXECUTE 'DROP FUNCTION ' || own; END IF; END $$;
DROP SCHEMA IF EXISTS pglead`

// Uninstall removes the ledger and all that it remembers. If that would remove objects of others,
// it removes nothing, and the error names them.
func Uninstall(ctx context.Context, on session.Connection) error {
	_, err := on.Query(ctx, uninstalling) // one transaction
	var pgErr *pgconn.PgError
	if session.HasCode(err, session.DependentObjectsStillExist, session.WrongObjectType) && errors.As(err, &pgErr) {
		return session.Errorf(session.Denied, "drop them first; DROP SCHEMA pglead CASCADE drops them, too",
			"nothing was removed, since there are objects that are not the ledger's: %s", visible.Text(strings.ReplaceAll(cmp.Or(pgErr.Detail, pgErr.Message), "\n", "; ")))
	}
	return err
}
