package ledger_test

import (
	"fmt"
	"strings"
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
