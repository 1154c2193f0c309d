package ledger_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestUninstallBesideARun: a run in a transaction that has started before an uninstall notes its
// end, and the uninstall waits for that.
func TestUninstallBesideARun(t *testing.T) {
	server := remembering(t, nil)
	a, owner := connect(t, server, "cron"), connect(t, server, "boss")
	run(t, a, finish(7, fenced(t, a).token, "ok"))
	s := of(token(t, a))
	expect(t, "a start", run(t, a, "BEGIN; "+s.first()), "started")
	uninstalled := make(chan error, 1)
	go func() { uninstalled <- ledger.Uninstall(t.Context(), asking(owner)) }()
	testserver.Eventually(t, "the uninstall waits", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_locks WHERE relation = 'pglead.lock'::regclass AND NOT granted") == "1"
	})
	if _, err := try(t, a, finish(7, s.token, "ok")+"; COMMIT"); err != nil {
		t.Errorf("the end: %v", err)
	}
	if err := <-uninstalled; err != nil {
		t.Errorf("the uninstall: %v", err)
	}
	expect(t, "the schema", query(t, server, "SELECT to_regnamespace('pglead') IS NULL"), "t")
}

// TestInstallWithoutXML: a server that was built without libxml gets no ledger, with which no run
// could start there. Here another function takes the place of query_to_xml, and fails as it does
// then: at the first row.
func TestInstallWithoutXML(t *testing.T) {
	server := testserver.Start(t, nil)
	query(t, server, `SET allow_system_table_mods = on;
ALTER FUNCTION pg_catalog.query_to_xml(text, boolean, boolean, text) RENAME TO query_to_xml_of_libxml;
CREATE FUNCTION pg_catalog.query_to_xml(query text, nulls boolean, tableforest boolean, targetns text) RETURNS xml LANGUAGE plpgsql AS
$$ DECLARE r record; BEGIN FOR r IN EXECUTE query LOOP RAISE EXCEPTION USING errcode = '0A000', message = 'unsupported XML feature'; END LOOP; RETURN NULL; END $$`)
	if err := ledger.Install(t.Context(), asking(connect(t, server, localpg.Superuser)), ledger.Plan{Keep: ledger.Keep}); code(err) != "0A000" {
		t.Errorf("the install: %v", err)
	}
	expect(t, "the schema", query(t, server, "SELECT to_regnamespace('pglead') IS NULL"), "t")
}

// TestPublished: where a publication takes all tables along, a ledger is installed only if the
// subscribers have it. With the schema that the hint names they go on, and copy it.
func TestPublished(t *testing.T) {
	server := testserver.Start(t, map[string]string{"wal_level": "logical"})
	in := func(database, sql string) string {
		t.Helper()
		rows, err := server.Query(database, sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return strings.Join(rows, " ")
	}
	arrives := func(n int) {
		t.Helper()
		in("postgres", fmt.Sprintf("INSERT INTO application VALUES (%d)", n))
		testserver.Eventually(t, fmt.Sprint(n, " arrives"), func() bool {
			return in("replica", fmt.Sprintf("SELECT count(*) FROM application WHERE n = %d", n)) == "1"
		})
	}
	in("postgres", "CREATE DATABASE replica")
	in("postgres", "CREATE TABLE application (n integer PRIMARY KEY); CREATE PUBLICATION all_of_it FOR ALL TABLES")
	in("postgres", "SELECT pg_create_logical_replication_slot('replica', 'pgoutput')")
	in("replica", "CREATE TABLE application (n integer PRIMARY KEY)")
	in("replica", fmt.Sprintf("CREATE SUBSCRIPTION replica CONNECTION '%s' PUBLICATION all_of_it WITH (create_slot = false)", strings.ReplaceAll(server.DSN("postgres"), "'", "''")))
	arrives(1)

	owner := connect(t, server, localpg.Superuser)
	if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{}); code(err) != ledger.WouldBePublished {
		t.Fatalf("an install without the subscriber: %v", err)
	}
	expect(t, "the schema", in("postgres", "SELECT to_regnamespace('pglead') IS NULL"), "t")
	arrives(2)
	in("replica", ledger.InstallSQL(ledger.Plan{}))
	in("replica", "TRUNCATE pglead.setting")
	if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{Keep: 7, Published: true}); err != nil {
		t.Fatal(err)
	}
	arrives(3)
	in("replica", "ALTER SUBSCRIPTION replica REFRESH PUBLICATION")
	testserver.Eventually(t, "the setting arrives", func() bool { return in("replica", "SELECT keep FROM pglead.setting") == "7" })
	arrives(4)
	in("replica", "DROP SUBSCRIPTION replica")
}

// TestInstallOverOlder installs over a ledger whose tables an earlier build has made.
func TestInstallOverOlder(t *testing.T) {
	server := remembering(t, nil)
	owner, a := connect(t, server, "boss"), connect(t, server, "cron")
	run(t, owner, `ALTER TABLE pglead.lock DROP COLUMN alone, ADD CHECK (sub IN (1, 2)), ADD CHECK (outcome IN ('ok', 'failed', 'timeout', 'lost', 'killed', 'stopped'));
CREATE FUNCTION pglead.prune_1(interval) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
ALTER FUNCTION pglead.prune_locks_1 SECURITY DEFINER; ALTER FUNCTION pglead.prune_runs_1 SECURITY DEFINER;
INSERT INTO pglead.lock (number, sub, reader, token, system, started, ended) SELECT 7, 1, r, 1, system_identifier, now(), CASE r WHEN 0 THEN now() END FROM pg_control_system(), generate_series(0, 1) AS r`)
	reading := connect(t, server, "boss")
	run(t, reading, "BEGIN; SELECT FROM pglead.lock")
	run(t, owner, "SET lock_timeout = '100ms'")
	if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{Keep: ledger.Keep}); code(err) != "55P03" {
		t.Errorf("beside somebody who reads the table: %v", err)
	}
	run(t, reading, "ROLLBACK; BEGIN")
	if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{Keep: ledger.Keep}); err != nil {
		t.Fatal(err)
	}
	run(t, reading, "SELECT FROM pglead.lock")
	if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{Keep: ledger.Keep}); err != nil {
		t.Errorf("once more, beside somebody who reads the table: %v", err)
	}
	run(t, reading, "ROLLBACK")
	expect(t, "what is gone", query(t, server, "SELECT (SELECT count(*) FROM pg_constraint WHERE conrelid = 'pglead.lock'::regclass AND contype = 'c'), (SELECT count(*) FROM pg_proc WHERE proname = 'prune_1' OR proname LIKE 'prune%' AND prosecdef)"), "0 0")
	run(t, a, "SELECT pg_advisory_lock(7)")
	s := of(token(t, a))
	s.sure = true
	expect(t, "a reader from before", run(t, a, s.first()), "")
	expect(t, "a reader from before", run(t, a, s.rest()), "lost 1 1 0 0")
	s.closes = "1"
	expect(t, "it is dead", run(t, a, s.rest()), "started")
	run(t, a, finish(7, s.token, "ok"))
	const warm = "SELECT pglead.start_1(7, 1::smallint, 'seven', NULL, NULL, 'here', 'ann', 1, 'job', '15s', '0', NULL, NULL, NULL, NULL)"
	expect(t, "a start without a token", run(t, a, "BEGIN; "+warm+"; SELECT pg_current_xact_id_if_assigned() IS NULL; COMMIT"), " t")
	expect(t, "from then on", run(t, a, of(token(t, a)).first()), "started")
}

// TestInstallBesideOthers: installs don't get in each other's way, nor in that of a start which
// closes a lost run, whichever comes first.
func TestInstallBesideOthers(t *testing.T) {
	server := remembering(t, nil)
	for _, again := range []string{"", "DROP SCHEMA pglead CASCADE"} {
		query(t, server, again)
		var installs sync.WaitGroup
		for range 4 {
			owner := connect(t, server, "boss")
			installs.Go(func() {
				if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{Keep: ledger.Keep}); err != nil {
					t.Errorf("%q: %v", again, err)
				}
			})
		}
		installs.Wait()
	}
	query(t, server, "GRANT USAGE ON SCHEMA pglead TO cron")

	a, installing := connect(t, server, "cron"), connect(t, server, "boss")
	lost := fenced(t, a)
	next := of(token(t, a))
	next.closes = fmt.Sprint(lost.token)
	run(t, installing, "BEGIN; LOCK TABLE pglead.lock IN SHARE MODE") // as CREATE INDEX IF NOT EXISTS does
	answers := beside(t, a, next.rest())
	awaitLock(t, server, a)
	run(t, installing, "LOCK TABLE pglead.run IN SHARE MODE; COMMIT")
	expect(t, "the start", <-answers, "started<nil>")
}
