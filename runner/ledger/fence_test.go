package ledger_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

var levels = []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}

// table makes a table for the jobs to write to. It is in public: the superuser's own schema would
// be the ledger's.
const table = "CREATE TABLE public.work (token bigint); GRANT ALL ON public.work TO PUBLIC"

// fenced starts a run of lock 7 on the connection a.
func fenced(t *testing.T, a *pgconn.PgConn) starting {
	t.Helper()
	run(t, a, "SELECT pg_advisory_lock(7)")
	s := of(token(t, a))
	s.sure, s.closes = true, "9223372036854775807"
	expect(t, "the run", run(t, a, s.rest()), "started")
	return s
}

func fence(token int64) string { return fmt.Sprintf("SELECT pglead.fence('seven', %d)", token) }

func write(token int64) string { return fmt.Sprintf("INSERT INTO public.work VALUES (%d)", token) }

// TestFence: a job that doesn't know of its loss goes on writing, in transactions that begin before
// or after the next start.
func TestFence(t *testing.T) {
	server := remembering(t, nil)
	query(t, server, table)
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			a, b, job := connect(t, server, "cron"), connect(t, server, "cron"), connect(t, server, "other")
			old := fenced(t, a)
			begin := "BEGIN ISOLATION LEVEL " + level
			run(t, job, begin+";"+fence(old.token)+";"+write(old.token)+"; COMMIT")
			run(t, job, fmt.Sprintf("%s; SELECT pglead.fence(7, %d); SELECT pglead.fence('7', %[2]d); COMMIT", begin, old.token))

			early := connect(t, server, "other") // this snapshot is older than the next start
			run(t, early, begin+"; SELECT count(*) FROM public.work")
			under := connect(t, server, "other") // and this transaction has called fence
			run(t, under, begin+";"+fence(old.token)+";"+write(old.token))

			run(t, a, "SELECT pg_advisory_unlock(7)")
			run(t, b, "SELECT pg_advisory_lock(7)")
			next := of(token(t, b))
			began := time.Now()
			if got := run(t, b, next.rest()); !strings.HasPrefix(got, "lost ") {
				t.Errorf("the next start: %q", got)
			}
			run(t, under, "SELECT 1") // its session has not been ended too early
			if level == "READ COMMITTED" {
				if _, err := try(t, job, begin+";"+fence(old.token)); code(err) != "LE001" {
					t.Errorf("a fence of the run that is cut off: %v", err)
				}
				run(t, job, "ROLLBACK")
			}
			next.closes = fmt.Sprint(old.token)
			expect(t, "the next start", run(t, b, next.rest()), "started")
			if took := time.Since(began); took > lapse/10 {
				t.Errorf("it took %v", took)
			}
			if _, err := try(t, under, "COMMIT"); err == nil {
				t.Error("a transaction behind the fence of the last run was committed after the next start")
			}
			_, err := try(t, early, fence(old.token))
			if got := code(err); got != "LE001" && got != "40001" {
				t.Errorf("a fence in a transaction with an old snapshot: %v", err)
			}
			_, err = try(t, job, begin+";"+fence(old.token))
			if code(err) != "LE001" || !strings.Contains(err.Error(), fmt.Sprintf("run %d of seven is over; run %d on here has started", old.token, next.token)) {
				t.Errorf("a fence of the last run: %v", err)
			}
			run(t, job, "ROLLBACK; "+begin+";"+fence(next.token)+";"+write(next.token)+"; COMMIT")
			run(t, b, finish(7, next.token, "ok"))
			if _, err := try(t, job, fence(next.token)); code(err) != "LE001" {
				t.Errorf("a fence of a run that has ended: %v", err)
			}
		})
	}
	a := connect(t, server, "cron")
	for _, sql := range []string{"SELECT pglead.fence(NULL::text, 1)", "SELECT pglead.fence(NULL::bigint, 1)", "SELECT pglead.fence(7, NULL)", "SELECT pglead.fence('seven', NULL)", "SELECT pglead.fence('eight', 1)", "SELECT pglead.fence(8, 1)",
		"SELECT pglead.fence('99999999999999999999', 1)", "SELECT pglead.fence('0,2147483648', 1)", "SELECT pglead.fence('0,', 1)"} {
		if _, err := try(t, a, sql); code(err) != "LE001" {
			t.Errorf("%s: %v, want LE001", sql, err)
		}
	}
}

// TestFenceLeftovers: the transaction of a run that ended clean is in the way of the next start, in
// several ways.
func TestFenceLeftovers(t *testing.T) {
	server := remembering(t, map[string]string{"max_prepared_transactions": "5"})
	query(t, server, table)
	a := connect(t, server, "cron")
	leftover := func(role string, more ...string) (*pgconn.PgConn, starting) {
		old := fenced(t, a)
		job := connect(t, server, role)
		run(t, job, "BEGIN;"+fence(old.token)+";"+write(old.token)+";"+strings.Join(more, ";"))
		run(t, a, finish(7, old.token, "ok"))
		return job, of(token(t, a))
	}
	committed := func() string { return query(t, server, "SELECT count(*) FROM public.work") }

	_, next := leftover("other")
	expect(t, "beside an idle transaction", run(t, a, next.first()), "")
	expect(t, "beside an idle transaction", run(t, a, next.rest()), "started")
	run(t, a, finish(7, next.token, "ok"))

	job, next := leftover("other")
	ended := make(chan error, 1)
	go func() {
		_, err := job.Exec(t.Context(), "SELECT pg_sleep(3600)").ReadAll()
		ended <- err
	}()
	expect(t, "beside a statement", run(t, a, next.rest()), "started")
	if err := <-ended; err == nil {
		t.Error("a statement behind the fence of the last run was not ended")
	}
	run(t, a, finish(7, next.token, "ok"))

	query(t, server, "ALTER SYSTEM SET synchronous_standby_names TO 'nobody'")
	query(t, server, "SELECT pg_reload_conf()")
	run(t, a, "SET synchronous_commit = local")
	before := committed()
	job, next = leftover("other")
	go func() {
		_, err := job.Exec(t.Context(), "COMMIT").ReadAll()
		ended <- err
	}()
	testserver.Eventually(t, "the commit waits", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
	})
	expect(t, "beside a commit that waits for a standby", run(t, a, next.rest()), "started")
	<-ended
	expect(t, "which is a commit", committed(), fmt.Sprint(atoi(t, before)+1))
	query(t, server, "ALTER SYSTEM RESET synchronous_standby_names")
	query(t, server, "SELECT pg_reload_conf()")
	run(t, a, finish(7, next.token, "ok"))

	job, next = leftover(localpg.Superuser) // a granted role must not end sessions of that one
	pid := run(t, job, "SELECT pg_backend_pid()")
	expect(t, "beside a superuser", run(t, a, next.rest()), "fenced "+pid+" "+localpg.Superuser)
	brief := next
	brief.lease = "3 s"
	answered := fmt.Sprintf("SET statement_timeout = '%d ms'; %s; RESET statement_timeout", leasetime.HolderShare(3*time.Second).Milliseconds(), brief.rest())
	expect(t, "the same within the share of a short lease", run(t, a, answered), "fenced "+pid+" "+localpg.Superuser)
	run(t, job, "COMMIT")
	expect(t, "when that is done", run(t, a, next.rest()), "started")
	run(t, a, finish(7, next.token, "ok"))

	query(t, server, "REVOKE pg_signal_backend FROM boss")
	job, next = leftover("other")
	pid = run(t, job, "SELECT pg_backend_pid()")
	expect(t, "where the owner may end no session", run(t, a, next.rest()), "fenced "+pid+" other")
	run(t, job, "ROLLBACK")
	expect(t, "when that is done", run(t, a, next.rest()), "started")
	run(t, a, finish(7, next.token, "ok"))

	query(t, server, "GRANT pg_signal_backend TO boss")
	bystander := connect(t, server, "other")
	_, next = leftover("other", "PREPARE TRANSACTION 'left'")
	expect(t, "beside a prepared transaction", run(t, a, next.rest()), "fenced")
	expect(t, "a bystander", run(t, bystander, "SELECT 1"), "1")
	query(t, server, "COMMIT PREPARED 'left'")
	expect(t, "when that is done", run(t, a, next.rest()), "started")
}

func atoi(t *testing.T, text string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFenceOfReader: a reader's transaction that goes on after its end is in the way of the next
// writer, also if another reader has started meanwhile.
func TestFenceOfReader(t *testing.T) {
	server := remembering(t, nil)
	query(t, server, table)
	a, b, job := connect(t, server, "cron"), connect(t, server, "cron"), connect(t, server, "other")
	reads := func(conn *pgconn.PgConn) starting {
		run(t, conn, "SELECT pg_advisory_lock_shared(7)")
		s := of(token(t, conn))
		s.sure, s.shared = true, true
		expect(t, "a reader", run(t, conn, s.rest()), "started")
		return s
	}
	ends := func(conn *pgconn.PgConn, s starting) {
		run(t, conn, finish(7, s.token, "ok")+"; SELECT pg_advisory_unlock_shared(7)")
	}
	first := reads(a) // no writer has had the lock before
	run(t, job, "BEGIN;"+fence(first.token)+";"+write(first.token))
	ends(b, reads(b))
	run(t, job, "SELECT 1") // it is in no reader's way, while its run is alive
	ends(a, first)
	ends(b, reads(b))
	run(t, job, "SELECT 1") // nor later
	run(t, a, "SELECT pg_advisory_lock(7)")
	expect(t, "a writer", run(t, a, of(token(t, a)).rest()), "started")
	if _, err := try(t, job, "COMMIT"); err == nil {
		t.Error("a reader's transaction was committed after a writer's start")
	}
}

// TestFenceCutOff: a run is cut off while its fence waits for the marker that it shares. The fence
// refuses.
func TestFenceCutOff(t *testing.T) {
	server := remembering(t, nil)
	a, job := connect(t, server, "cron"), connect(t, server, "other")
	old := fenced(t, a)
	holds := connect(t, server, localpg.Superuser)
	run(t, holds, fmt.Sprintf("SELECT pg_advisory_lock(pglead.marker_1(7, 1::smallint, %d))", old.token))
	fences := beside(t, job, fence(old.token))
	awaitLock(t, server, job)
	query(t, server, "UPDATE pglead.lock SET cut = clock_timestamp()")
	run(t, holds, "SELECT pg_advisory_unlock_all()")
	expect(t, "a fence of a run that was cut off meanwhile", <-fences, "LE001")
}

// TestReadersTogether: readers start at the same time, after a writer, and none ends the session of
// another, or waits for its commit. A pause waits for them.
func TestReadersTogether(t *testing.T) {
	server := remembering(t, nil)
	a, b := connect(t, server, "cron"), connect(t, server, "cron")
	writer := fenced(t, a)
	run(t, a, finish(7, writer.token, "ok")+"; SELECT pg_advisory_unlock(7)")
	reader := func(conn *pgconn.PgConn) string {
		run(t, conn, "SELECT pg_advisory_lock_shared(7)")
		s := of(token(t, conn))
		s.shared = true
		return s.rest()
	}

	first, second := reader(a), reader(b)
	run(t, a, "BEGIN")
	expect(t, "the first reader", run(t, a, first), "started")
	answers := beside(t, b, second)
	awaitLock(t, server, b) // the first one changes the lock's own row
	run(t, a, "COMMIT")
	expect(t, "the second reader", <-answers, "started<nil>")

	first, second = reader(a), reader(b)
	run(t, a, "BEGIN")
	expect(t, "a reader after readers", run(t, a, first), "started")
	expect(t, "another one, before that one's commit", run(t, b, second), "started")
	run(t, b, "SELECT pglead.tidy_1(7, 1::smallint)") // nor does the end of one wait
	answers = beside(t, b, "SELECT pglead.pause_1(7, 1::smallint, 'seven', 'infinity', 'ann', '')")
	awaitLock(t, server, b)
	run(t, a, "COMMIT")
	expect(t, "a pause", <-answers, "paused<nil>")
}

// TestBusyMeanwhile: a start waits for a transaction of a last run, and meanwhile loses one of its
// locks, under which another run starts. That run goes on.
func TestBusyMeanwhile(t *testing.T) {
	server := remembering(t, nil)
	a, b, job := connect(t, server, "cron"), connect(t, server, "cron"), connect(t, server, localpg.Superuser)
	old := fenced(t, a)
	run(t, job, "BEGIN;"+fence(old.token))
	run(t, a, finish(7, old.token, "ok")+"; SELECT pg_advisory_lock(8)")

	both := of(token(t, b))
	both.numbers, both.keys, both.closes, both.sure, both.backend = "7, 8", "'seven', 'eight'", "0, 0", true, fmt.Sprint(a.PID())
	answers := beside(t, b, both.rest())
	awaitLock(t, server, b)
	c := connect(t, server, "cron")
	run(t, a, "SELECT pg_advisory_unlock(8)")
	run(t, c, "SELECT pg_advisory_lock(8)")
	other := of(token(t, c))
	other.numbers, other.keys, other.sure = "8", "'eight'", true
	expect(t, "another run", run(t, c, other.rest()), "started")
	run(t, job, "COMMIT")
	expect(t, "the start that has lost the lock", <-answers, "busy 2<nil>")
	run(t, c, fmt.Sprintf("SELECT pglead.fence('eight', %d)", other.token))
}
