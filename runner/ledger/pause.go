package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglead/pglead/runner/session"
)

// PauseRequest is a pause that somebody asks for.
type PauseRequest struct {
	For      time.Duration // by the server's clock; 0: until ResumeKey
	By, Note string
}

// PauseKey keeps the runs of a key from starting, in all its slots. It ends no run.
func PauseKey(ctx context.Context, on session.Connection, l Lock, r PauseRequest) error {
	until := "'infinity'::timestamptz"
	if r.For > 0 {
		until = "pg_catalog.now() + " + intervalSQL(r.For)
	}
	_, err := on.Query(ctx, fmt.Sprintf("SELECT pglead.pause_1(%d, %d::smallint, %s, %s, %s, %s)",
		l.Number, l.ObjSubID(), l.keySQL(), until, quoteWord(r.By), quoteMost(r.Note, mostNote)))
	return err
}

// ResumeKey ends the pause of a lock, and says whether there was one. The lock may have no row yet.
func ResumeKey(ctx context.Context, on session.Connection, l Lock) (was bool, err error) {
	rows, err := on.Query(ctx, "SELECT pglead.resume_1(number, sub) FROM pglead.lock WHERE paused_until IS NOT NULL AND reader = 0 AND ("+l.pausedSQL()+")")
	return slices.ContainsFunc(rows, func(row []string) bool { return session.Rows{row}.Is("t") }), err
}
