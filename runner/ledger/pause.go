package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/pglead/pglead/lockkey"
)

// PauseKey keeps a key from being started, in all its slots, for a length of time by
// the server's clock, or, if that is 0, until ResumeKey. What runs, runs on.
func PauseKey(ctx context.Context, ask Ask, key string, id lockkey.ID, d time.Duration, by, note string) error {
	until := "'infinity'::timestamptz"
	if d > 0 {
		until = fmt.Sprintf("pg_catalog.now() + '%d microseconds'::interval", d.Microseconds())
	}
	_, err := ask(ctx, fmt.Sprintf("SELECT pglead.pause_1(%d, %d::smallint, %s, %s, %s, %s)", id.Number, id.ObjSubID(), quote(key), until, quote(by), quote(note)))
	return err
}

// ResumeKey ends the pause of a key, and says whether there was one.
func ResumeKey(ctx context.Context, ask Ask, id lockkey.ID) (was bool, err error) {
	rows, err := ask(ctx, fmt.Sprintf("SELECT pglead.resume_1(%d, %d::smallint)", id.Number, id.ObjSubID()))
	return len(rows) == 1 && rows[0][0] == "t", err
}
