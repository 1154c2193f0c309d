package lock_test

import (
	"slices"
	"testing"
)

// TestPauseForgets: who sits a pause out stands in no line, so that starts aren't announced to it.
// What it heard before is no evidence when the pause is over, and the ledger does not know of those
// who don't use it.
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
