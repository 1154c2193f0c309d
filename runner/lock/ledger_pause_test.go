package lock_test

import (
	"slices"
	"testing"
	"time"
)

// TestPauseForgets: a run that waits for the end of a pause stands in no line, so that starts
// aren't announced to it. What it heard before is no evidence when the pause is over, and the
// ledger does not know of runs that don't use it.
func TestPauseForgets(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	without := config(t, dsn, exclusive(7))
	h := acquire(t, without)
	waiter := contend(t, ledgered(config(t, dsn, exclusive(7))))
	inLine(t, server, id(7), 1)
	query(t, server, "SELECT pglead.pause_1(7, 1::smallint, 'nightly', 'infinity', 'ann', NULL)")
	release(t, h)
	eventually(t, "it sits the pause out", func() bool { return slices.Contains(waiter.said(), "paused") })
	tear(t, server, acquire(t, without))
	query(t, server, "SELECT pglead.resume_1(7, 1::smallint)")
	waitsBeside(t, waiter)
}

// TestPauseForgetsAllLocks: so it is with each of several locks, also with one that was free before
// the pause.
func TestPauseForgetsAllLocks(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	h := acquire(t, config(t, dsn, exclusive(8)))
	cfg := ledgered(config(t, dsn, exclusive(7, 8)))
	cfg.Claim.Keys = []string{"first", "last"}
	waiter := contend(t, cfg)
	inLine(t, server, id(8), 1)
	query(t, server, "SELECT pglead.pause_1(7, 1::smallint, 'first', 'infinity', 'ann', NULL)")
	release(t, h)
	eventually(t, "it sits the pause out", func() bool { return slices.Contains(waiter.said(), "paused") })
	tear(t, server, acquire(t, config(t, dsn, exclusive(7))))
	h = acquire(t, config(t, dsn, exclusive(8)))
	query(t, server, "SELECT pglead.resume_1(7, 1::smallint)")
	inLine(t, server, id(8), 1)
	release(t, h)
	waitsBeside(t, waiter)
}

// TestPauseExtended: if a pause takes the place of a shorter one, the ledger is not asked more
// often, and the refusal names the new pause.
func TestPauseExtended(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	query(t, server, "SELECT pglead.pause_1(7, 1::smallint, 'nightly', now() + interval '4 s', 'ann', 'short')")
	waiter := contend(t, ledgered(config(t, dsn, exclusive(7))))
	eventually(t, "it sits the pause out", func() bool { return slices.Contains(waiter.said(), "paused") })
	query(t, server, "SELECT pglead.pause_1(7, 1::smallint, 'nightly', now() + interval '1 h', 'bob', 'long')")
	asked := func() string {
		return query(t, server, "SELECT coalesce(max(state_change)::text, '') FROM pg_stat_activity WHERE query LIKE '%FROM pglead.lock WHERE paused_until >%' AND application_name LIKE 'pglead:%'")[0]
	}
	times := map[string]bool{}
	const most = 4 // one every three seconds
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
		times[asked()] = true
	}
	delete(times, "")
	if len(times) == 0 || len(times) > most+2 { // the ledger is also asked at the short pause's end
		t.Errorf("%d questions in ten seconds", len(times))
	}
	waiter.stop()
	<-waiter.done
}
