package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// planting creates operators and functions for these types and all pairs of them, in a schema that
// every session's search_path begins with. Their types fit as well as those of PostgreSQL's own, or
// better. Whoever calls one of them shows in the sequence, and gets an error, and so does whoever
// takes the type text for PostgreSQL's.
const planting = `
CREATE SEQUENCE planted;
CREATE FUNCTION plant() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $plant$
DECLARE
	types text[] := '{bool,int2,int4,int8,numeric,float8,text,name,varchar,oid,regclass,regnamespace,xid,interval,timestamptz,text[]}';
	a text; b text; op text; result text; f text;
BEGIN
	FOREACH a IN ARRAY types LOOP
		FOREACH f IN ARRAY '{count,sum,max,min,avg,bool_or,bool_and,array_agg,string_agg,left,concat,round,length,abs,now,unnest,to_timestamp}'::text[] LOOP
			EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS int8 LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval(''public.planted''); RAISE ''planted''; END $$', f, a);
		END LOOP;
		FOREACH b IN ARRAY types LOOP
			FOREACH result IN ARRAY '{bool,numeric,text}'::text[] LOOP
				EXECUTE format('CREATE FUNCTION public.planted_%s(%s, %s) RETURNS %1$s LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval(''public.planted''); RAISE ''planted''; END $$', result, a, b);
			END LOOP;
			FOREACH op IN ARRAY '{=,<>,<,>,<=,>=,~,!~,~~,!~~,||,&,|,<<,>>,+,-,*,/,%}'::text[] LOOP
				result := CASE WHEN op IN ('||') THEN 'text' WHEN op IN ('+', '-', '*', '/', '%', '&', '|', '<<', '>>') THEN 'numeric' ELSE 'bool' END;
				EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.planted_%s)', op, a, b, result);
			END LOOP;
		END LOOP;
	END LOOP;
END $plant$;
SELECT plant();
CREATE FUNCTION never(pg_catalog.text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('public.planted'); RAISE 'planted'; END $$;
CREATE DOMAIN public.text AS pg_catalog.text CHECK (never(VALUE));
ALTER DATABASE postgres SET search_path = public, pg_catalog`

// TestPlanted: who may create functions and operators in a schema of the search_path, as
// everybody may in public before PostgreSQL 15, can't have pglead call them, with the rights of
// its role (CVE-2018-1058 is about that). All commands that ask a server do so here.
func TestPlanted(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	pooler := testserver.Pooled(t, server, localpg.Superuser, "transaction", 6)
	ask(t, server, planting)
	for _, path := range []struct{ name, dsn, mode string }{
		{"direct", server.DSN("postgres"), "--transaction=false"}, {"pooler", pooler, "--transaction"},
	} {
		t.Run(path.name, func(t *testing.T) {
			p := planted{t, path.dsn}
			sql, err := command(t, "ledger", "install", "--sql").Output()
			if err != nil {
				t.Fatal(err)
			}
			ask(t, server, string(sql))
			p.does(0, "ledger", "install")
			key := "planted/" + path.name
			holder := launch(t, "run", path.mode, "--dsn", path.dsn, "--key", key, "--", "sleep", "1000")
			p.until(0, "who", key)
			waiter := launch(t, "run", path.mode, "--dsn", path.dsn, "--wait", "1m", "--key", key, "--once-per", "1h", "--", "true")
			if path.name == "direct" && !eventually(func() bool { // in line it asks more
				return ask(t, server, "SET search_path = pg_catalog; SELECT count(*) > 2 FROM pg_locks WHERE locktype = 'advisory'")[0] == "t"
			}) {
				t.Fatalf("it never waits: %s", waiter.said)
			}
			for _, args := range [][]string{{"who", key}, {"ls"}, {"ls", "-o", "prometheus"}, {"doctor", path.mode}, {"stepdown", key, "--wait", "30"}} {
				p.does(0, args...)
			}
			holder.ends()
			if status := waiter.ends(); status != 0 || strings.Contains(waiter.said.String(), "planted:") {
				t.Errorf("the waiter ends with %d: %s", status, waiter.said)
			}
			for _, args := range [][]string{
				{"history", key}, {"check", key, "--within", "1h"}, {"pause", key},
				{"each", path.mode, "--key", "{}", "--wait", "0.5", "-E", "0", key, "--", "false"}, {"resume", key}, {"ledger", "status"}, {"ledger", "prune", "--older", "7d"},
				{"run", path.mode, "--key", key, "--", "true"}, {"run", path.mode, "--key", key, "--key", key + "/2", "--", "true"}, {"each", path.mode, "--key", key + "/{}", "1", "2", "--", "true"},
			} {
				p.does(0, args...)
			}
		})
	}
	if called := ask(t, server, "SELECT is_called FROM public.planted"); called[0] != "f" {
		t.Error("what was planted was called")
	}
}

// planted runs commands at a server with plants.
type planted struct {
	t   *testing.T
	dsn string
}

// at adds the server to a command's arguments.
func (p planted) at(args []string) []string {
	return slices.Insert(slices.Clone(args), 1, "--dsn", p.dsn)
}

// does runs a command to its end.
func (p planted) does(status int, args ...string) {
	p.t.Helper()
	if got, said := outcome(p.t, p.at(args)...); got != status {
		p.t.Errorf("pglead %q ends with %d: %s", args, got, said)
	}
}

// until runs a command until it ends with this status.
func (p planted) until(status int, args ...string) {
	p.t.Helper()
	var got int
	var said string
	if !eventually(func() bool {
		got, said = outcome(p.t, p.at(args)...)
		return got == status
	}) {
		p.t.Fatalf("pglead %q ends with %d: %s", args, got, said)
	}
}
