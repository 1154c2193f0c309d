package ledger_test

import (
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
	if err := ledger.Install(t.Context(), asking(connect(t, server, localpg.Superuser)), ledger.Keep); code(err) != "0A000" {
		t.Errorf("the install: %v", err)
	}
	expect(t, "the schema", query(t, server, "SELECT to_regnamespace('pglead') IS NULL"), "t")
}
