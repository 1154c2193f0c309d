package session

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestPasswordRefused: PostgreSQL says the same of a wrong password and of a role that it
// hasn't got, so the hint has both, and another one where no password was given.
func TestPasswordRefused(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "28P01", Message: `password authentication failed for user "cron"`}
	for password, want := range map[string]string{"hunter2": "no such role", "": "~/.pgpass"} {
		text, kind, hint := describePgError(refused, &pgconn.Config{User: "cron", Password: password})
		if kind != Denied || !strings.Contains(hint, want) || strings.Contains(text+hint, "hunter2") {
			t.Errorf("with the password %q: %q, kind %d, hint %q", password, text, kind, hint)
		}
	}
}
