package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
)

func TestStart(t *testing.T) {
	server := remembering(t, nil)
	a, b := connect(t, server, "cron"), connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock(7)")
	first := of(token(t, a))
	expect(t, "the common case without a row", run(t, a, first.first()), "")
	expect(t, "without a row", run(t, a, first.rest()), "unknown")
	first.sure = true
	expect(t, "without a row, surely", run(t, a, first.rest()), "started")
	expect(t, "asked twice", run(t, a, first.rest()), "started")
	expect(t, "rows", query(t, server, "SELECT count(*) FROM pglead.lock"), "1")

	expect(t, "another session", run(t, b, of(token(t, b)).rest()), "busy 1")
	expect(t, "another session, the common case", run(t, b, of(token(t, b)).first()), "")
	forged := of(token(t, b))
	forged.backend = run(t, a, "SELECT pg_backend_pid()")
	other := connect(t, server, "other")
	expect(t, "another role's, for the session that has it", run(t, other, forged.rest()), "busy 1")
	forged.backend = run(t, b, "SELECT pg_backend_pid()")
	expect(t, "for a session that has it not", run(t, b, forged.rest()), "busy 1")
	elsewhere, err := pgconn.Connect(t.Context(), strings.Replace(server.DSN("template1"), "user="+localpg.Superuser, "user=cron", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close(context.Background())
	forged.backend = run(t, elsewhere, "SELECT pg_backend_pid() FROM pg_advisory_lock(7)")
	expect(t, "for a session that has it in another database", run(t, b, forged.rest()), "busy 1")
	reader := of(token(t, b))
	reader.numbers, reader.backend = "9", run(t, b, "SELECT pg_backend_pid() FROM pg_advisory_lock_shared(9)")
	expect(t, "a writer, for a session that reads", run(t, a, reader.rest()), "busy 1")

	expect(t, "the end by another role", run(t, other, finish(7, first.token, "ok")), "")
	expect(t, "the end of another token", run(t, a, finish(7, first.token+1, "ok")), "")
	expect(t, "still open", query(t, server, "SELECT ended IS NULL FROM pglead.lock"), "t")
	expect(t, "the end", run(t, b, finish(7, first.token, "ok")), fmt.Sprint(first.token))
	expect(t, "the end again", run(t, b, finish(7, first.token, "failed")), "")
	expect(t, "the row", query(t, server, "SELECT outcome, ok_host, ok_ended = ended, role, cut IS NULL FROM pglead.lock"), "ok here t cron t")
	expect(t, "the history", query(t, server, "SELECT number, key, outcome, token = "+fmt.Sprint(first.token)+" FROM pglead.run"), "7 seven ok t")

	second := of(token(t, a))
	expect(t, "the common case", run(t, a, second.first()), "started")
	expect(t, "the common case asked twice", run(t, a, second.first())+run(t, a, second.rest()), "started")
	run(t, a, "SELECT pg_advisory_unlock(7)")

	run(t, b, "SELECT pg_advisory_lock(7)")
	third := of(token(t, b))
	third.lease, third.grace = "9s", "2.5s"
	expect(t, "after an end that nobody saw, the common case", run(t, b, third.first()), "")
	lost := fmt.Sprintf("lost 1 %d 15000 0 here", second.token)
	for _, sure := range []bool{false, true} {
		third.sure = sure
		expect(t, "after an end that nobody saw", run(t, b, third.rest()), lost)
	}
	expect(t, "left open, and cut off", query(t, server, "SELECT token, ended IS NULL, cut IS NOT NULL FROM pglead.lock"), fmt.Sprintf("%d t t", second.token))
	third.closes = fmt.Sprint(second.token - 1)
	expect(t, "who closes an earlier one", run(t, b, third.rest()), lost)
	third.closes = fmt.Sprint(second.token)
	expect(t, "who closes it", run(t, b, third.rest()), "started")
	expect(t, "the lost run", query(t, server, fmt.Sprintf("SELECT outcome, status IS NULL FROM pglead.run WHERE token = %d", second.token)), "lost t")
	expect(t, "its late end", run(t, a, finish(7, second.token, "ok")), "")
	run(t, b, "SELECT pg_advisory_unlock(7)")

	run(t, a, "SELECT pg_advisory_lock(7)")
	fourth := of(token(t, a))
	expect(t, "another's lease", run(t, a, fourth.rest()), fmt.Sprintf("lost 1 %d 9000 2500 here", third.token))
	expect(t, "the survivor's word", run(t, b, finish(7, third.token, "lost")), fmt.Sprint(third.token))
	expect(t, "after that", run(t, a, fourth.first()), "started")
}

func TestStartElsewhere(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock(7)")
	s := of(token(t, a))
	s.sure = true
	expect(t, "the first", run(t, a, s.rest()), "started")
	run(t, a, finish(7, s.token, "ok"))
	next := of(token(t, a))
	next.system = "'1'" // restored from a dump of another cluster
	expect(t, "another system", run(t, a, next.first())+run(t, a, next.rest()), "unknown")
	next = of(token(t, a) + 1<<48) // after a promotion
	expect(t, "another timeline", run(t, a, next.first())+run(t, a, next.rest()), "unknown")
	next.sure = true
	expect(t, "another timeline, surely", run(t, a, next.rest()), "started")

	for what, sql := range map[string]string{
		"a token that nobody has drawn": of(token(t, a) + 1000).rest(),
		"NULL":                          strings.Replace(of(token(t, a)).rest(), "ARRAY[7]", "NULL", 1),
		"a text of any length":          strings.Replace(of(token(t, a)).rest(), of(1).system, "repeat('7', 21)", 1),
		"arrays of several lengths":     strings.Replace(of(token(t, a)).rest(), "ARRAY['seven']", "ARRAY['seven', 'eight']", 1),
		"REPEATABLE READ":               "BEGIN ISOLATION LEVEL REPEATABLE READ; " + of(token(t, a)).rest(),
	} {
		if _, err := try(t, a, sql); code(err) != "22023" {
			t.Errorf("%s: %v, want 22023", what, err)
		}
		_, _ = try(t, a, "ROLLBACK")
	}
	long := of(token(t, a))
	long.closes, long.sure, long.lease, long.grace, long.keys = fmt.Sprint(next.token), true, "1000 days", "-5s", "repeat('k', 5000)"
	expect(t, "words without bounds", run(t, a, long.rest()), "started")
	expect(t, "their bounds", query(t, server, "SELECT length(key) FROM pglead.lock")+" "+run(t, a, of(token(t, a)).rest()), fmt.Sprintf("500 lost 1 %d 86400000 0 here", long.token))
}

func TestStartWithHeardStarts(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock(7)")
	var tokens []int64
	for range 3 {
		s := of(token(t, a))
		s.sure = true
		expect(t, "a start", run(t, a, s.rest()), "started")
		run(t, a, finish(7, s.token, "ok"))
		tokens = append(tokens, s.token)
	}
	s := of(token(t, a))
	s.heard = fmt.Sprint(tokens[0], ",", tokens[2]+1)
	expect(t, "who has heard of a start that the ledger lacks", run(t, a, s.rest()), "unknown")
	s.heard = fmt.Sprint(tokens[0], ",", tokens[2])
	expect(t, "who has heard of starts that it knows to have ended", run(t, a, s.rest()), "started")
}

func TestStartOfSeveralLocks(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock(7), pg_advisory_lock(8)")
	s := of(token(t, a))
	s.sure = true
	expect(t, "one", run(t, a, s.rest()), "started")
	both := of(token(t, a))
	both.numbers, both.keys, both.closes, both.sure = "7, 8", "'seven', 'eight'", "-1, -1", true // which closes nothing
	expect(t, "two of which one is open", run(t, a, both.rest()), fmt.Sprintf("lost 1 %d 15000 0 here", s.token))
	expect(t, "none", query(t, server, "SELECT count(*) FROM pglead.lock WHERE number = 8"), "0")
	b := connect(t, server, "cron")
	run(t, b, finish(7, s.token, "failed"))
	run(t, a, "SELECT pg_advisory_unlock(8)")
	run(t, b, "SELECT pg_advisory_lock(8)")
	expect(t, "two of which one is another's", run(t, a, both.rest()), "busy 2")
	expect(t, "none", query(t, server, "SELECT count(*) FROM pglead.lock WHERE ended IS NULL"), "0")
	run(t, b, "SELECT pg_advisory_unlock(8)")
	run(t, a, "SELECT pg_advisory_lock(8)")
	both.closes, both.sure = "-1, 0", false // the ledger knows of 7, and not of 8
	expect(t, "two of which one is unknown", run(t, a, both.rest()), "unknown")
	both.closes = "0, -1"
	expect(t, "two", run(t, a, both.rest()), "started")
	expect(t, "both", query(t, server, "SELECT count(*) FROM pglead.lock WHERE ended IS NULL"), "2")
	run(t, a, finish(7, both.token, "ok")+";"+finish(8, both.token, "ok"))
	expect(t, "the history", query(t, server, "SELECT string_agg(concat(number, outcome), ' ' ORDER BY ended) FROM pglead.run"), "7failed 7ok 8ok")
	slots := of(token(t, a))
	expect(t, "one of them by itself", run(t, a, slots.first()), "started")
}

func TestReaders(t *testing.T) {
	server := remembering(t, nil)
	a, b, w := connect(t, server, "cron"), connect(t, server, "cron"), connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock_shared(7)")
	run(t, b, "SELECT pg_advisory_lock_shared(7)")
	first, second := of(token(t, a)), of(token(t, b))
	first.shared, second.shared, first.sure = true, true, true
	expect(t, "a reader", run(t, a, first.rest()), "started")
	expect(t, "another", run(t, b, second.rest()), "started")
	writer := of(token(t, w))
	expect(t, "a writer beside them", run(t, w, writer.rest()), "busy 1")
	run(t, a, finish(7, first.token, "ok")+"; SELECT pglead.tidy_1(7, 1::smallint); SELECT pg_advisory_unlock_shared(7)")
	expect(t, "a reader's success", query(t, server, "SELECT ok_host FROM pglead.lock WHERE reader = 0"), "here")
	run(t, b, "SELECT pg_advisory_unlock_shared(7)") // nobody announces that
	run(t, w, "SELECT pg_advisory_lock(7)")
	expect(t, "a writer after a reader that was lost", run(t, w, writer.rest()), fmt.Sprintf("lost 1 %d 15000 0 here", second.token))
	run(t, b, finish(7, second.token, "lost"))
	expect(t, "a writer after readers", run(t, w, writer.first())+run(t, w, writer.rest()), "started")
	expect(t, "rows", query(t, server, "SELECT count(*) FROM pglead.lock"), "1")
	run(t, w, "SELECT pg_advisory_unlock(7)")
	run(t, a, "SELECT pg_advisory_lock_shared(7)")
	third := of(token(t, a))
	third.shared = true
	expect(t, "a reader after a writer that was lost", run(t, a, third.rest()), fmt.Sprintf("lost 1 %d 15000 0 here", writer.token))
	third.closes = fmt.Sprint(writer.token)
	expect(t, "a reader that has waited", run(t, a, third.rest())+run(t, a, third.rest()), "startedstarted")
	const rows = "SELECT count(*), max(ok_ended) = (SELECT max(ended) FROM pglead.run WHERE outcome = 'ok') FROM pglead.lock"
	run(t, a, finish(7, third.token, "ok")) // and tidy_1 is yet to be called
	third.token = token(t, a)
	expect(t, "a reader after that", run(t, a, third.rest()), "started")
	expect(t, "the last success is not forgotten", query(t, server, rows), "3 t")
	run(t, a, finish(7, third.token, "failed")+"; SELECT pg_advisory_unlock_shared(7)")
	run(t, w, "SELECT pg_advisory_lock(7)")
	writer.token = token(t, w)
	expect(t, "a writer after that", run(t, w, writer.rest()), "started")
	expect(t, "the last success is the lock's", query(t, server, rows), "1 t")
}

func TestTicks(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock(7)")
	at := func(tick, per, clock string) starting {
		s := of(token(t, a))
		s.sure, s.tick, s.per, s.clock = true, tick, "'"+per+"'", clock
		return s
	}
	const hour = "date_trunc('hour', now())"
	s := at(hour, "1h", "now()")
	expect(t, "the first", run(t, a, s.rest()), "started")
	run(t, a, finish(7, s.token, "failed"))
	s = at(hour, "1h", "now()")
	expect(t, "after a failure, the common case", run(t, a, s.first()), "started")
	run(t, a, finish(7, s.token, "ok"))
	s = at(hour, "1h", "now()")
	expect(t, "after a success, the common case", run(t, a, s.first()), "")
	if got := run(t, a, s.rest()); !strings.HasPrefix(got, "done ") || !strings.HasSuffix(got, " here") {
		t.Errorf("after a success: %q", got)
	}
	expect(t, "an earlier tick", run(t, a, at(hour+" - interval '1h'", "1h", "now()").first()), "")
	if got := run(t, a, at(hour+" - interval '1h'", "1h", "now()").rest()); !strings.HasPrefix(got, "done ") {
		t.Errorf("an earlier tick: %q", got)
	}
	s = at("NULL", "1h", "NULL")
	s.per = "NULL"
	expect(t, "without a tick", run(t, a, s.first()), "started")
	run(t, a, finish(7, s.token, "ok"))
	if got := run(t, a, at(hour, "1h", "now()").rest()); !strings.HasPrefix(got, "done ") {
		t.Errorf("after one without a tick: %q", got)
	}
	for clock, want := range map[string]string{"now() + interval '301s'": "clock 301", "now() - interval '6 min'": "clock -360"} {
		s := at(hour+" + interval '1h'", "1h", clock)
		expect(t, clock, run(t, a, s.first())+run(t, a, s.rest()), want)
	}
	expect(t, "a minute's clock", run(t, a, at("now()", "1 min", "now() + interval '31s'").rest()), "clock 31")
	for what, s := range map[string]starting{
		"a tick of years to come": at("now() + interval '1 year'", "1h", "now()"),
		"a day of years to come":  at("now() + interval '1 year'", "1 day", "now()"),
		"a tick without a clock":  at("now()", "1h", "NULL"),
	} {
		expect(t, what, run(t, a, s.first()), "")
		if _, err := try(t, a, s.rest()); code(err) != "22023" {
			t.Errorf("%s: %v, want 22023", what, err)
		}
	}
	expect(t, "today, where it is tomorrow already", run(t, a, at("now() + interval '14h'", "1 day", "now()").first()), "started")
}

func TestPause(t *testing.T) {
	server := remembering(t, nil)
	a := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_lock(7)")
	expect(t, "a pause before anything ran", run(t, a, "SELECT pglead.pause_1(7, 1::smallint, 'seven', 'infinity', 'ann', E'disk\nswap')"), "paused")
	s := of(token(t, a))
	expect(t, "a start", run(t, a, s.rest()), "paused infinity\nann\ndisk?swap")
	expect(t, "a pause that ends", run(t, a, "SELECT pglead.pause_1(7, 1::smallint, 'seven', to_timestamp(4102444800), 'bob', NULL)"), "paused")
	expect(t, "a start", run(t, a, s.rest()), "paused 4102444800\nbob\n")
	expect(t, "its end", run(t, a, "SELECT pglead.resume_1(7, 1::smallint)"), "t")
	expect(t, "again", run(t, a, "SELECT pglead.resume_1(7, 1::smallint)"), "f")
	expect(t, "what a pause says of earlier runs", run(t, a, s.rest()), "unknown")
	s.sure = true
	expect(t, "a start", run(t, a, s.rest()), "started")
	expect(t, "a pause beside a run", run(t, a, "SELECT pglead.pause_1(7, 1::smallint, 'seven', now() + interval '1h', 'ann', NULL)"), "paused")
	expect(t, "the run's end", run(t, a, finish(7, s.token, "ok")), fmt.Sprint(s.token))
	s = of(token(t, a))
	if got := run(t, a, s.first()) + run(t, a, s.rest()); !strings.HasPrefix(got, "paused ") {
		t.Errorf("a start: %q", got)
	}
	slot := s
	slot.numbers, slot.sure = "70", true
	run(t, a, "SELECT pg_advisory_lock(70)")
	if got := run(t, a, slot.rest()); !strings.HasPrefix(got, "paused ") {
		t.Errorf("another lock of the key: %q", got)
	}
	run(t, a, "SELECT pglead.resume_1(7, 1::smallint)")
	expect(t, "a start after that", run(t, a, s.first())+run(t, a, slot.rest()), "startedstarted")
	run(t, a, "SELECT pglead.pause_1(7, 1::smallint, 'seven', now() - interval '1h', 'ann', NULL)")
	run(t, a, finish(70, slot.token, "ok"))
	expect(t, "a pause that is over", run(t, a, of(token(t, a)).forLock("70").first()), "started")
}

func (s starting) forLock(number string) starting {
	s.numbers = number
	return s
}

// TestLedgerAccess: roles that are not granted the ledger see nothing and do nothing, and granted roles
// do nothing but what the functions do.
func TestLedgerAccess(t *testing.T) {
	server := remembering(t, nil)
	stranger, cron, owner := connect(t, server, "stranger"), connect(t, server, "cron"), connect(t, server, "boss")
	for _, sql := range []string{of(1).first(), of(1).rest(), finish(7, 1, "ok"), "SELECT pglead.fence(7, 1)", "SELECT * FROM pglead.lock", "SELECT pglead.prune_locks_1('0', 0, 1::smallint, 0)", "SELECT pglead.prune_runs_1('0', 0, 1::smallint, now(), 0)"} {
		if _, err := try(t, stranger, sql); code(err) != "42501" {
			t.Errorf("a stranger's %s: %v", sql, err)
		}
	}
	for _, sql := range []string{"SELECT pglead.prune_locks_1('0', 0, 1::smallint, 0)", "SELECT pglead.prune_runs_1('0', 0, 1::smallint, now(), 0)", "DELETE FROM pglead.lock", "INSERT INTO pglead.run DEFAULT VALUES", "UPDATE pglead.setting SET keep = 1", "DROP TABLE pglead.run", "CREATE TABLE pglead.trap ()"} {
		if _, err := try(t, cron, sql); code(err) != "42501" {
			t.Errorf("%s by one who is granted: %v", sql, err)
		}
	}
	expect(t, "what a reader sees", run(t, cron, "SELECT count(*) FROM pglead.lock")+run(t, cron, "SELECT keep FROM pglead.setting"), "01000")
	if err := ledger.Uninstall(t.Context(), asking(owner)); err != nil {
		t.Fatal(err)
	}
	expect(t, "what is left", query(t, server, "SELECT count(*) FROM pg_namespace WHERE nspname = 'pglead'")+query(t, server, "SELECT count(*) FROM pg_proc WHERE prosrc LIKE '%pglead%'"), "00")
	if _, err := try(t, owner, ledger.InstallSQL(ledger.Plan{Keep: 5})); err != nil {
		t.Fatal(err)
	}
	expect(t, "what was asked to be kept", query(t, server, "SELECT version, keep FROM pglead.setting"), "1 5")
}

func prune(t *testing.T, conn *pgconn.PgConn, older time.Duration) string {
	t.Helper()
	gone, err := ledger.Prune(t.Context(), asking(conn), older)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(gone)
}

// TestPruneBesideOthers prunes more than one transaction removes, while another session starts a
// run of a key that is to be forgotten, and a third one removes some runs of another key.
func TestPruneBesideOthers(t *testing.T) {
	server := remembering(t, nil)
	pruning, b := connect(t, server, "boss"), connect(t, server, "cron")
	query(t, server, `INSERT INTO pglead.run (number, sub, started, token, ended, outcome)
SELECT n % 11, 1, now() - interval '1 hour' * n, n, now() - interval '1 hour' * n, CASE WHEN n % 3 = 0 THEN 'failed' ELSE 'ok' END FROM generate_series(1, 12000) AS n;
INSERT INTO pglead.lock (number, sub, reader, token, started, ended)
SELECT n, 1 + n % 2, 0, n, now() - interval '9 days', now() - interval '9 days' FROM generate_series(-6000, 6) AS n;
INSERT INTO pglead.lock (number, sub, reader, token) SELECT 100, 1, 0, 1; -- of readers, by itself
INSERT INTO pglead.lock (number, sub, reader, token, started, ended)
SELECT 100, 1, n, n, now() - interval '9 days', now() - interval '9 days' FROM generate_series(1, 50) AS n;
INSERT INTO pglead.lock (number, sub, reader, token, started, ended) -- a writer's, and a reader's
VALUES (7, 1, 0, 1, now() - interval '9 days', now() - interval '9 days'), (7, 1, 2, 2, now(), now())`)

	run(t, b, "SELECT pg_advisory_lock(6)")
	s := of(token(t, b))
	s.numbers, s.sure = "6", true
	run(t, b, "BEGIN")
	expect(t, "a start", run(t, b, s.rest()), "started")
	owner := connect(t, server, "boss")
	run(t, owner, "BEGIN")
	run(t, owner, "DELETE FROM pglead.run WHERE number = 9 AND outcome = 'failed'")
	// All the rest is gone: 6006 locks, the readers' 51, and the runs older than 40 hours except
	// for those that are locked.
	runs := query(t, server, "SELECT count(*) FROM pglead.run WHERE ended < now() - interval '40 hours' AND NOT (number = 9 AND outcome = 'failed')")
	var old int
	if _, err := fmt.Sscan(runs, &old); err != nil {
		t.Fatal(err)
	}
	expect(t, "a prune", prune(t, pruning, 40*time.Hour), fmt.Sprint(6006+51+old))
	run(t, b, "COMMIT")
	run(t, owner, "ROLLBACK")
	expect(t, "what is left", query(t, server, "SELECT string_agg(concat(number, ' ', reader), ', ' ORDER BY number, reader) FROM pglead.lock"), "6 0, 7 0, 7 2")
	failed := query(t, server, "SELECT count(*) FROM pglead.run WHERE ended < now() - interval '40 hours'")
	expect(t, "another", prune(t, pruning, 40*time.Hour), failed)
	expect(t, "the end", run(t, b, finish(6, s.token, "ok")), fmt.Sprint(s.token))
}

func TestKeepsTheNewest(t *testing.T) {
	server := remembering(t, nil)
	owner, a := connect(t, server, "boss"), connect(t, server, "cron")
	if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{Keep: 10}); err != nil {
		t.Fatal(err)
	}
	query(t, server, `INSERT INTO pglead.run (number, sub, started, token, ended, outcome)
SELECT 7, 1, now() - interval '1 day' * n, n, now() - interval '1 day' * n, CASE n WHEN 30 THEN 'ok' WHEN 3 THEN 'stopped' ELSE 'failed' END FROM generate_series(1, 40) AS n`)
	query(t, server, `INSERT INTO pglead.lock (number, sub, token, started, ended) VALUES (7, 1, 1, now() - interval '1 day', now() - interval '1 day'), (8, 1, 2, now() - interval '9 days', NULL)`)
	run(t, a, "SELECT pglead.tidy_1(7, 1::smallint)")
	expect(t, "the newest that began, the last success, and another", query(t, server, "SELECT count(*), max(token) FROM pglead.run"), "12 30")
	query(t, server, "INSERT INTO pglead.run (number, sub, started, token, outcome) SELECT 6, 1, now() - interval '1 day' * n, n, 'stopped' FROM generate_series(1, 40) AS n")
	run(t, a, "SELECT pglead.tidy_1(6, 1::smallint)")
	expect(t, "the newest of those that didn't", query(t, server, "WITH gone AS (DELETE FROM pglead.run WHERE number = 6 RETURNING token) SELECT count(*), max(token) FROM gone"), "10 10")
	if _, err := ledger.Prune(t.Context(), asking(owner), -time.Hour); err != nil {
		t.Fatal(err)
	}
	expect(t, "older than what is to come", query(t, server, "SELECT count(*) FROM pglead.run"), "12")
	expect(t, "what is older than five days", prune(t, owner, 108*time.Hour), "7")
	expect(t, "the last success is spared", query(t, server, "SELECT count(*), max(token) FROM pglead.run"), "5 30")
	expect(t, "a key that doesn't come back", prune(t, owner, 12*time.Hour), "6")
	expect(t, "an open run", query(t, server, "SELECT number FROM pglead.lock"), "8")
}
