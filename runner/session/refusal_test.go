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

// TestRefusalHints: where one statement is all that it takes, the hint has it, with names as
// SQL writes them.
func TestRefusalHints(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code, message, hint string
		kind                Kind
	}{
		{"53300", "sorry, too many clients already", "max_connections is the server's limit, and pg_stat_activity shows who has them", Unreachable},
		{"53300", `too many connections for role "Cron"`, `ALTER ROLE "Cron" CONNECTION LIMIT sets how many it may have`, Unreachable},
		{"53300", `too many connections for database "my app"`, `ALTER DATABASE "my app" CONNECTION LIMIT sets how many it may have`, Unreachable},
	} {
		_, kind, hint := describePgError(&pgconn.PgError{Code: tt.code, Message: tt.message}, &pgconn.Config{User: "Cron", Database: "my app"})
		if kind != tt.kind || hint != tt.hint {
			t.Errorf("%s: kind %d, hint %q", tt.message, kind, hint)
		}
	}
}
