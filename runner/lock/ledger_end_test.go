package lock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/ledger"
)

// TestLedgerEndShortLease: a holder that notes its command's end, and keeps the lock for a while,
// does not lose it because the ledger waits for its tables for longer than a short lease allows.
func TestLedgerEndShortLease(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	holder := contend(t, leased(ledgered(config(t, dsn, exclusive(7))), 4*time.Second))
	held := ended(holder.held(t), ledger.OK)
	owner := plain(t, as(t, server, "boss"), "BEGIN; LOCK TABLE pglead.lock")
	<-held.NoteEnd(t.Context())
	if err := held.Err(); err != nil {
		t.Errorf("lost: %v", err)
	}
	run(t, owner, "ROLLBACK")
	release(t, held)
	if got := rows(t, server); got != "nightly ok f t f" {
		t.Errorf("the row: %s", got)
	}
	if slices.Contains(holder.said(), "ledger") {
		t.Errorf("it warns: %v", holder.said())
	}
}

// TestLedgerEndInPart: NoteEnd can note the end for only one of two locks, and says nothing of
// that. The release notes it for the other lock, and does not say that the ledger has no such run.
func TestLedgerEndInPart(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	holder := contend(t, leased(ledgered(config(t, dsn, exclusive(7, 8))), 4*lease))
	held := ended(holder.held(t), ledger.OK)
	owner := plain(t, as(t, server, "boss"), "BEGIN; SELECT FROM pglead.lock WHERE number = 8 FOR UPDATE")
	<-held.NoteEnd(t.Context())
	if got := rows(t, server); got != "nightly ok f t f nightly  t t f" {
		t.Errorf("the rows, while one is locked: %s", got)
	}
	run(t, owner, "ROLLBACK")
	release(t, held)
	if got := rows(t, server); got != "nightly ok f t f nightly ok f t f" {
		t.Errorf("the rows: %s", got)
	}
	if slices.Contains(holder.said(), "ledger") {
		t.Errorf("it warns: %v", holder.said())
	}
}

// TestLedgerEndForgotten: NoteEnd learns that the ledger has forgotten the run of one lock, and then
// can't note the end for the other. The release warns of the first, once.
func TestLedgerEndForgotten(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	holder := contend(t, leased(ledgered(config(t, dsn, exclusive(7, 8))), 4*lease))
	held := ended(holder.held(t), ledger.OK)
	query(t, server, "DELETE FROM pglead.lock WHERE number = 7")
	owner := plain(t, as(t, server, "boss"), "BEGIN; SELECT FROM pglead.lock WHERE number = 8 FOR UPDATE")
	<-held.NoteEnd(t.Context())
	run(t, owner, "ROLLBACK")
	release(t, held)
	if got := rows(t, server); got != "nightly ok f t f" {
		t.Errorf("the rows: %s", got)
	}
	if n := strings.Count(strings.Join(holder.said(), " "), "ledger"); n != 1 {
		t.Errorf("it warns %d times: %v", n, holder.said())
	}
}
