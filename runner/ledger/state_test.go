package ledger_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
)

// TestMissingFunctions: a function is missing for runs if a start calls it, and not at all if only
// newer functions call it than those that the ledger has.
func TestMissingFunctions(t *testing.T) {
	server := remembering(t, nil)
	owner := connect(t, server, "boss")
	missing := func(what, want string) {
		t.Helper()
		forRuns, others, err := ledger.Missing(t.Context(), asking(owner))
		if err != nil {
			t.Fatal(err)
		}
		expect(t, what, fmt.Sprint(forRuns, others), want)
	}
	missing("a whole ledger", "[] []")
	run(t, owner, "DROP FUNCTION pglead.prune_runs_1, pglead.missing_1; CREATE FUNCTION pglead.prune_1(interval) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'")
	missing("what no start calls", "[] [pglead.missing_1 pglead.prune_runs_1]")
	run(t, owner, "DROP FUNCTION pglead.marker_1")
	missing("what starts call", "[pglead.marker_1] [pglead.missing_1 pglead.prune_runs_1]")
	if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{}); err != nil {
		t.Fatal(err)
	}
	run(t, owner, "DROP FUNCTION pglead.slots_1")
	missing("what starts and pauses call", "[pglead.slots_1] []")
	older := func(functions string) {
		run(t, owner, `DO $$ DECLARE definition text; BEGIN
	FOR definition IN SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname IN (`+functions+`) LOOP
		EXECUTE regexp_replace(definition, 'pglead[.]slots_1[(][^()]*[)]', 'true', 'g');
	END LOOP;
END $$`)
	}
	older("'start_rest_1'")
	missing("what only pauses call", "[] [pglead.slots_1]")
	older("'pause_1', 'resume_1'")
	missing("what an older ledger does not call", "[] []")
	run(t, owner, "DROP TABLE pglead.setting")
	missing("a table", "[pglead.setting] []")
}

// TestWithoutSetting: a ledger that was restored without rows, as from pg_dump -s, keeps as many
// runs as by default, and says that its setting is missing. An install over it brings the setting
// back.
func TestWithoutSetting(t *testing.T) {
	server := remembering(t, nil)
	owner, a := connect(t, server, "boss"), connect(t, server, "cron")
	run(t, owner, "DELETE FROM pglead.setting")
	query(t, server, fmt.Sprintf(`INSERT INTO pglead.run (number, sub, started, token, ended, outcome)
SELECT 7, 1, now() - interval '1 hour' * n, n, now(), 'failed' FROM generate_series(1, %d) AS n`, ledger.Keep+5))
	run(t, a, "SELECT pglead.tidy_1(7, 1::smallint)")
	expect(t, "what is kept", query(t, server, "SELECT count(*), max(token) FROM pglead.run"), fmt.Sprint(ledger.Keep, ledger.Keep))
	state := func(what string, version, keep int, missing string) {
		t.Helper()
		s, err := ledger.ReadState(t.Context(), asking(a))
		if err != nil || s.Version != version || s.Keep != keep || s.Runs != int64(ledger.Keep) || s.Owner != "boss" {
			t.Errorf("%s: %+v, %v", what, s, err)
		}
		forRuns, others, err := ledger.Missing(t.Context(), asking(a))
		expect(t, what, fmt.Sprint(forRuns, others, err), missing)
	}
	state("without a setting", 0, ledger.Keep, "[] [row in pglead.setting] <nil>")
	if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{Keep: 7}); err != nil {
		t.Fatal(err)
	}
	state("installed again", ledger.Version, 7, "[] [] <nil>")
	run(t, a, "SELECT pglead.tidy_1(7, 1::smallint)")
	expect(t, "what is kept then", query(t, server, "SELECT count(*) FROM pglead.run"), "7")
}

// TestNonsenseStopsNoReader: what a granted role has told the functions doesn't keep others from
// reading.
func TestNonsenseStopsNoReader(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, finish(7, fenced(t, a).token, "ok"))
	s := of(token(t, a))
	expect(t, "a start after an endless delay", run(t, a, strings.Replace(s.rest(), "'0', NULL, NULL", "'0', '170000000 years', NULL", 1)), "started")
	run(t, a, finish(7, s.token, "ok"))
	run(t, a, "SELECT pglead.pause_1(7, 1::smallint, 'seven', '-infinity', 'ann', NULL)")
	facts, err := ledger.FactsMatching(t.Context(), asking(a), nil, 10)
	if err != nil || len(facts.List) != 1 || facts.List[0].Pause.Paused() || facts.List[0].Last.Waited != 0 {
		t.Errorf("%+v, %v", facts, err)
	}
}

// TestGivenBackIsNoRun: a start that was given back before its command began is no run.
func TestGivenBackIsNoRun(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	unbegun := func() {
		s := of(token(t, a))
		s.sure = true
		expect(t, "a start", run(t, a, s.rest()), "started")
		run(t, a, finish(7, s.token, "stopped"))
	}
	remembered := func(runs int, last ledger.Outcome) {
		t.Helper()
		past, err := ledger.ReadHistory(t.Context(), asking(a), ledger.Past{Key: "seven", IDs: []lockkey.ID{{Number: 7}}, Most: 10})
		if err != nil || len(past.Runs) != runs {
			t.Errorf("the history: %+v, %v", past, err)
		}
		facts, err := ledger.FactsMatching(t.Context(), asking(a), nil, 10)
		if err != nil || len(facts.List) != 1 || facts.List[0].Last.Outcome != last || facts.List[0].Last.Started.IsZero() != (last == "") {
			t.Errorf("the facts: %+v, %v", facts, err)
		}
	}
	run(t, a, "SELECT pg_advisory_lock(7)")
	unbegun()
	remembered(0, "")
	s := of(token(t, a))
	expect(t, "a run", run(t, a, s.rest()), "started")
	run(t, a, finish(7, s.token, "ok"))
	unbegun()
	remembered(1, ledger.OK)
}

// TestSomeEndsTidyUp: some ends also tidy up.
func TestSomeEndsTidyUp(t *testing.T) {
	tidy := 0
	for range 64_000 {
		tidy += len(ledger.TidyQueries(lockkey.ID{Number: 7}, false))
	}
	if tidy < 500 || tidy > 2000 {
		t.Errorf("of 64,000 runs %d tidy up", tidy)
	}
}
