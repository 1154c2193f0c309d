package testserver

import (
	"testing"

	"github.com/pglead/pglead/runner/localpg"
)

// FillQueue returns a function that makes each NOTIFY at a server fail, as on one whose queue of
// notifications is full, until somebody has the server free the queue. The queue itself is too
// large to fill in a test: only PostgreSQL 17 and later let one make it smaller.
func FillQueue(t *testing.T, server *localpg.Server) (fill func()) {
	t.Helper()
	// A function of PostgreSQL's own is called by its number, whatever replaces its text.
	Query(t, server, `CREATE SEQUENCE public.freed; GRANT ALL ON SEQUENCE public.freed TO PUBLIC; SELECT nextval('public.freed');
ALTER FUNCTION pg_catalog.pg_notify RENAME TO pg_notify_unless_full;
CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
	IF NOT (SELECT is_called FROM public.freed) THEN
		RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
	END IF;
	PERFORM pg_catalog.pg_notify_unless_full($1, $2);
END $$;
ALTER FUNCTION pg_catalog.pg_notification_queue_usage RENAME TO pg_notification_queue_used;
CREATE FUNCTION pg_catalog.pg_notification_queue_usage() RETURNS double precision LANGUAGE plpgsql AS $$ BEGIN
	PERFORM pg_catalog.nextval('public.freed');
	RETURN pg_catalog.pg_notification_queue_used();
END $$`)
	return func() {
		t.Helper()
		Query(t, server, "SELECT setval('public.freed', 1, false)")
	}
}
