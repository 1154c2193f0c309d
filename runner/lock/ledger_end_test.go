package lock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
)

// TestRecordEnd: a holder records its command's end while the owner has the ledger's rows locked,
// and keeps the lock. The release records the rest, and warns only of a run that the ledger has
// forgotten.
func TestRecordEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		claim     lock.Claim
		lease     time.Duration
		forgotten string // the lock whose run the ledger forgets, or none
		locks     string // what the owner does meanwhile
		meanwhile string // the rows then, unless they can't be read
		want      string
		warnings  int
	}{
		// RecordEnd does not wait for longer than a short lease allows.
		"short lease": {
			claim: exclusive(7), lease: 4 * time.Second, locks: "LOCK TABLE pglead.lock", want: "nightly ok f t f",
		},
		// It can record the end for only one of two locks, and says nothing of that.
		"in part": {
			claim: exclusive(7, 8), lease: 4 * lease, locks: "SELECT FROM pglead.lock WHERE number = 8 FOR UPDATE",
			meanwhile: "nightly ok f t f nightly  t t f", want: "nightly ok f t f nightly ok f t f",
		},
		// It learns that the run of one lock is forgotten, and then can't record the end for the other.
		"forgotten": {
			claim: exclusive(7, 8), lease: 4 * lease, locks: "SELECT FROM pglead.lock WHERE number = 8 FOR UPDATE",
			forgotten: "7", meanwhile: "nightly  t t f", want: "nightly ok f t f", warnings: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, dsn := remembering(t, nil)
			holder := contend(t, leased(ledgered(config(t, dsn, tt.claim)), tt.lease))
			held := ended(holder.held(t), ledger.OK)
			if tt.forgotten != "" {
				query(t, server, "DELETE FROM pglead.lock WHERE number = "+tt.forgotten)
			}
			owner := plain(t, as(t, server, "boss"), "BEGIN; "+tt.locks)
			<-held.RecordEnd(t.Context())
			if err := held.Err(); err != nil {
				t.Errorf("lost: %v", err)
			}
			if tt.meanwhile != "" {
				if got := rows(t, server); got != tt.meanwhile {
					t.Errorf("the rows, while they are locked: %s", got)
				}
			}
			run(t, owner, "ROLLBACK")
			release(t, held)
			if got := rows(t, server); got != tt.want {
				t.Errorf("the rows: %s", got)
			}
			if n := strings.Count(strings.Join(holder.said(), " "), "ledger"); n != tt.warnings {
				t.Errorf("it warns %d times: %v", n, holder.said())
			}
		})
	}
}

// TestNothingToReport: a reader whose end the ledger has, and which then loses its session, needs
// nothing more of the server, and warns of nothing.
func TestNothingToReport(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	holder := contend(t, leased(ledgered(config(t, dsn, shared(7))), 4*lease))
	held := ended(holder.held(t), ledger.OK)
	<-held.RecordEnd(t.Context())
	if err := server.Stop(2); err != nil { // SIGINT
		t.Fatal(err)
	}
	<-held.Lost()
	lock.ReportEnded(t.Context(), held)
	if said := strings.Join(holder.said(), " "); strings.Contains(said, "ledger") || strings.Contains(said, "away") {
		t.Errorf("it says %s", said)
	}
}

// TestReportInTwoParts: the server takes the record of a lost run and rejects the announcement of its
// death, for want of room in its queue. The report repeats only that, and warns of nothing.
func TestReportInTwoParts(t *testing.T) {
	t.Parallel()
	server, _ := remembering(t, nil)
	rejections := atomic.Int32{}
	holder := contend(t, ledgered(config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.Contains(sql, "'dead '") && rejections.Add(1) == 1 {
			return "DO $$BEGIN RAISE EXCEPTION USING ERRCODE = 'program_limit_exceeded', MESSAGE = 'too many notifications'; END$$"
		}
		return sql
	}), exclusive(7))))
	held := holder.held(t)
	tear(t, server, held)
	<-held.Lost()
	lock.ReportLost(t.Context(), held)
	if got := rows(t, server); got != "nightly lost f t f" || rejections.Load() != 2 {
		t.Errorf("the rows: %s; after %d announcements", got, rejections.Load())
	}
	if said := holder.said(); slices.Contains(said, "ledger") {
		t.Errorf("it says %v", said)
	}
}

// TestReportUnsure: with a ledger the token is drawn, and the start announced, before it is
// certain that no earlier command is alive. A run that is lost before that is certain must not say
// that all are dead.
func TestReportUnsure(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	without := leased(config(t, dsn, exclusive(7)), 3*time.Second) // a lease that is shorter than the ledger's wait for a lock
	mayLive := acquire(t, without)
	unsure := contend(t, ledgered(without))
	inLine(t, server, id(7), 1)
	next := contend(t, without)
	inLine(t, server, id(7), 2)
	plain(t, as(t, server, "boss"), "BEGIN; LOCK TABLE pglead.lock") // until the test's end, which is later than a holder's share
	tear(t, server, mayLive)
	eventually(t, "the first in line is lost while the ledger is asked", func() bool { return strings.Count(strings.Join(unsure.said(), " "), "waiting") > 1 })
	unsure.stop()
	<-unsure.done
	waitsBeside(t, next)
}

// TestReportUnsureAlone: the same, if the only start that the next in line knows of is that of the
// run that is lost. So it hears nothing of that run's end.
func TestReportUnsureAlone(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	query(t, server, "ALTER FUNCTION pglead.start_rest_1 SET lock_timeout = 0; ALTER FUNCTION pglead.start_1 SET lock_timeout = 0")
	without := leased(config(t, dsn, exclusive(7)), longest/2) // the server is silent for a while
	mayLive := acquire(t, without)
	unsure := contend(t, ledgered(without))
	inLine(t, server, id(7), 1)
	owner := plain(t, as(t, server, "boss"), "BEGIN; LOCK TABLE pglead.lock")
	tear(t, server, mayLive)
	asks := "FROM pg_stat_activity WHERE application_name LIKE 'pglead:#%' AND wait_event_type = 'Lock' AND query LIKE '%start_rest_1%'"
	eventually(t, "it has drawn its token, and asks the ledger", func() bool { return query(t, server, "SELECT count(*) "+asks)[0] == "1" })
	next := contend(t, without)
	inLine(t, server, id(7), 1)
	query(t, server, "SELECT pg_terminate_backend(pid, 60000) "+asks)
	unsure.stop()
	<-unsure.done
	run(t, owner, "ROLLBACK")
	waitsBeside(t, next)
	if !next.waits() {
		t.Errorf("it has started beside a command that may be alive: %v, %v", next.err, next.said())
	}
}

// TestReportInVain: a run whose end nobody can record, since the server stays away, warns of that,
// also where there may be waiters, who could not be told either.
func TestReportInVain(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	cfg.LockDelay = time.Second
	holder := contend(t, cfg)
	held := ended(holder.held(t), ledger.OK)
	if err := server.Stop(2); err != nil { // SIGINT
		t.Fatal(err)
	}
	<-held.Lost()
	lock.ReportEnded(t.Context(), held)
	if said := strings.Join(holder.said(), " "); strings.Count(said, "ledger") != 1 {
		t.Errorf("it says %s", said)
	}
}

// TestEndsWhileLocked: the ledger's tables are locked when several locks are released, those of one
// run or of a list's items. Each record waits for 3 s, and together they wait for longer than an answer
// may take. All locks are freed, with a warning.
func TestEndsWhileLocked(t *testing.T) {
	t.Parallel()
	for _, ofList := range []bool{false, true} {
		server, dsn := remembering(t, nil)
		cfg := leased(ledgered(config(t, dsn, exclusive(7, 8, 9, 10))), 3*lease) // an answer may take 10.8 s
		owner := as(t, server, "boss")
		if !ofList {
			held := ended(acquire(t, cfg), ledger.OK)
			plain(t, owner, "BEGIN; LOCK TABLE pglead.lock")
			release(t, held)
		} else {
			l := openList(t, cfg)
			var attempts []*lock.Attempt
			for i := range cfg.Claim.IDs {
				a := takeItem(t, l, cfg, 7+int64(i), false)
				ended(settleItem(t, a), ledger.OK)
				attempts = append(attempts, a)
			}
			plain(t, owner, "BEGIN; LOCK TABLE pglead.lock")
			var releasing sync.WaitGroup
			for _, a := range attempts {
				releasing.Go(func() {
					if releaseErr, _ := l.Exchange(a, nil); releaseErr != nil {
						t.Error(releaseErr)
					}
					a.Close()
				})
			}
			releasing.Wait()
		}
		if n := advisoryLocks(t, server); n != "0" {
			t.Errorf("of a list: %t: %s locks are kept", ofList, n)
		}
	}
}

// TestLedgerWaitsOnce: a waiter hears from another role that the last command is dead, which a ledger
// does not take for the run's end. It waits for that run, and draws no other token for each word.
func TestLedgerWaitsOnce(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	query(t, server, "GRANT USAGE ON SCHEMA pglead TO other; ALTER ROLE other LOGIN")
	other := as(t, server, "other")
	held := acquire(t, ledgered(config(t, other, exclusive(7))))
	waiter := contend(t, ledgered(config(t, dsn, exclusive(7))))
	inLine(t, server, id(7), 1)
	tear(t, server, held)
	delays := func() (n int) {
		for _, event := range waiter.said() {
			if event == "delayed" {
				n++
			}
		}
		return n
	}
	eventually(t, "the waiter is delayed", func() bool { return delays() > 0 })
	relative := plain(t, other)
	for range 10 {
		run(t, relative, fmt.Sprintf("SELECT pg_notify('pglead.1.7', 'dead %d 1000 0 all')", held.Token))
		run(t, relative, "SELECT pg_sleep(0.1)")
	}
	n := delays()
	lock.ReportLost(t.Context(), held)
	release(t, waiter.held(t))
	if n > 2 { // the first may be the lock-delay, of a waiter that has heard nothing yet
		t.Errorf("it is delayed %d times", n)
	}
}

// TestTidyRejected: to tidy up in the ledger is not granted. The end of a reader, which tries that, is
// recorded and announced all the same, and nothing is said.
func TestTidyRejected(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	query(t, server, "REVOKE EXECUTE ON FUNCTION pglead.tidy_1 FROM PUBLIC")
	cfg := ledgered(config(t, dsn, shared(7)))
	for _, lost := range []bool{false, true} {
		c := contend(t, cfg)
		held := ended(c.held(t), ledger.OK)
		if lost {
			tear(t, server, held)
			lock.ReportEnded(t.Context(), held)
		} else {
			release(t, held)
		}
		if said := c.said(); len(said) > 0 {
			t.Errorf("lost %t: said %q", lost, said)
		}
	}
	if got := query(t, server, "SELECT outcome FROM pglead.run"); !slices.Equal(got, []string{"ok", "ok"}) {
		t.Errorf("the ledger: %q", got)
	}
}

// TestLostBeforeRecord: a session with several locks is lost before it has recorded their ends. A new
// one records them, so nothing is said of ends that could not be noted.
func TestLostBeforeRecord(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	c := contend(t, ledgered(config(t, dsn, exclusive(7, 8))))
	held := ended(c.held(t), ledger.OK)
	tear(t, server, held)
	if err := held.Release(t.Context()); err == nil {
		t.Error("a lock that was torn away is released")
	}
	lock.ReportEnded(t.Context(), held)
	if said := c.said(); len(said) > 0 {
		t.Errorf("said %q", said)
	}
	if got := query(t, server, "SELECT outcome FROM pglead.run"); !slices.Equal(got, []string{"ok", "ok"}) {
		t.Errorf("the ledger: %q", got)
	}
}

// TestReleaseWhileLocked: a signal has asked the run to end, and the ledger's tables are locked. The
// signal doesn't cut the release short: the locks are free, and the next one has heard of the end.
func TestReleaseWhileLocked(t *testing.T) {
	t.Parallel()
	for _, claim := range []lock.Claim{exclusive(7), exclusive(7, 8)} {
		server, dsn := remembering(t, nil)
		holder := contend(t, leased(ledgered(config(t, dsn, claim)), time.Minute))
		held := ended(holder.held(t), ledger.OK)
		next := contend(t, leased(config(t, dsn, exclusive(7)), time.Minute))
		inLine(t, server, id(7), 1)
		plain(t, as(t, server, "boss"), "BEGIN; LOCK TABLE pglead.lock")
		asked, cancel := context.WithCancel(t.Context())
		cancel()
		if err := held.Release(asked); err != nil {
			t.Error(err)
		}
		release(t, next.held(t))
		if said := holder.said(); !slices.Equal(said, []string{"ledger"}) || delayed(next) {
			t.Errorf("%s: the holder said %q, the next one %q", claim, holder.texts, next.said())
		}
	}
}

// TestRecordNotAwaited: the server is silent while an end is recorded, and a signal ends the wait for
// that. Later the server has the record, and nothing is said when the release repeats it.
func TestRecordNotAwaited(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	holder := contend(t, leased(ledgered(config(t, dsn, exclusive(7))), time.Minute))
	held := ended(holder.held(t), ledger.OK)
	backend := int(held.Session.BackendPID())
	if err := syscall.Kill(backend, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	<-held.RecordEnd(ctx)
	if err := syscall.Kill(backend, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	release(t, held)
	if got := rows(t, server); got != "nightly ok f t f" || len(holder.said()) > 0 {
		t.Errorf("the row: %s; said %q", got, holder.texts)
	}
}

// TestRecordRefused: an end's record is canceled, and no new session can repeat it. The warning says
// why.
func TestRecordRefused(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	holder := contend(t, leased(ledgered(config(t, dsn, exclusive(7))), 10*time.Second))
	held := ended(holder.held(t), ledger.OK)
	plain(t, as(t, server, "boss"), "BEGIN; LOCK TABLE pglead.lock")
	released := make(chan error, 1)
	go func() { released <- held.Release(context.Background()) }()
	eventually(t, "the record waits", func() bool {
		return query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %d", held.Session.BackendPID()))[0] == "1"
	})
	query(t, server, "ALTER ROLE cron CONNECTION LIMIT 0")
	query(t, server, fmt.Sprintf("SELECT pg_cancel_backend(%d)", held.Session.BackendPID()))
	if err := <-released; err != nil {
		t.Error(err)
	}
	if len(holder.texts) == 0 || !strings.Contains(holder.texts[len(holder.texts)-1], `too many connections for role "cron"`) {
		t.Errorf("said %q", holder.texts)
	}
}

// TestReportBehindPooler: a report may write, though the role's transactions are read only by default.
func TestReportBehindPooler(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	query(t, server, "ALTER ROLE cron SET default_transaction_read_only = on")
	holder := contend(t, inTransaction(ledgered(config(t, dsn, exclusive(7)))))
	held := holder.held(t)
	tear(t, server, held)
	lock.ReportLost(t.Context(), held)
	if got := rows(t, server); got != "nightly lost f t f" || len(holder.said()) > 0 {
		t.Errorf("the row: %s; said %q", got, holder.texts)
	}
}

// TestTidyAfterMinHold: an end that was recorded long before the release is tidied up behind, too.
func TestTidyAfterMinHold(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	held := ended(acquire(t, leased(ledgered(config(t, dsn, shared(7))), time.Minute)), ledger.OK) // with a short lease only the release records it
	<-held.RecordEnd(t.Context())
	release(t, held)
	// A reader's success becomes that of the lock when the ledger is tidied up.
	if got := query(t, server, "SELECT ok_ended IS NOT NULL FROM pglead.lock WHERE reader = 0"); !slices.Equal(got, []string{"t"}) {
		t.Errorf("the lock has the success: %q", got)
	}
}
