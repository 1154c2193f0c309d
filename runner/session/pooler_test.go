package session_test

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/session"
)

func TestPooler(t *testing.T) {
	server := start(t, nil)
	for _, mode := range []string{"session", "transaction", "statement"} {
		t.Run(mode, func(t *testing.T) {
			dsn := pooled(t, server, localpg.Superuser, mode, 1)
			_, err := session.Open(t.Context(), config(t, dsn))
			if kindOf(err) != session.Unsafe || !strings.Contains(err.Error(), "pooler") {
				t.Fatalf("Open: %v, want a refusal", err)
			}
			// The pooler's one connection to the server must have its settings of before.
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for setting, want := range map[string]string{"idle_session_timeout": "0", "application_name": "", "client_connection_check_interval": "0"} {
				out, err := exec.CommandContext(ctx, "psql", "-XAtq", dsn, "-c", "SHOW "+setting).CombinedOutput()
				got := strings.TrimSpace(string(out))
				if setting == "application_name" && got == "psql" {
					got = ""
				}
				if err != nil || got != want {
					t.Errorf("%s is %q after a refused session, want %q (%v)", setting, got, want, err)
				}
			}
		})
	}
}

// TestTransactionOnStandby: a standby is refused, even behind a pooler.
func TestTransactionOnStandby(t *testing.T) {
	t.Parallel()
	primary := start(t, map[string]string{"wal_level": "replica"})
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	cfg := config(t, standby.DSN("postgres"))
	cfg.Transaction = true
	if _, err := session.Open(t.Context(), cfg); kindOf(err) != session.Standby {
		t.Errorf("Open on a standby: %v", err)
	}
	cfg = config(t, pooled(t, standby, localpg.Superuser, "transaction", 2))
	cfg.Transaction = true
	if _, err := session.Open(t.Context(), cfg); kindOf(err) != session.Standby {
		t.Errorf("Open on a standby behind a pooler: %v", err)
	}
}

// TestCloseSparesThePool: a session that is closed during a request says goodbye after the answer, for
// which it waits a second. Otherwise the pooler would close its connection to the server.
func TestCloseSparesThePool(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, pooled(t, server, localpg.Superuser, "transaction", 1))
	cfg.Transaction = true
	for range 10 { // on a busy machine the answer may take longer
		if before, after := closeDuringRequest(t, server, cfg); before == after {
			return
		}
	}
	t.Error("each time the next client gets another backend")
}

// closeDuringRequest closes a session while the server works on a request, and takes an instant to cancel
// it. It returns the backend, and the one of the next session.
func closeDuringRequest(t *testing.T, server *localpg.Server, cfg session.Config) (before, after string) {
	t.Helper()
	s := openWith(t, cfg)
	asked := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := s.Query(ctx, "DO $$ BEGIN PERFORM pg_sleep(3600); EXCEPTION WHEN query_canceled THEN PERFORM pg_sleep(0.2); END $$")
		asked <- err
	}()
	const asleep = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
	eventually(t, "the request is under way", func() bool { return len(query(t, server, asleep)) == 1 })
	before = query(t, server, asleep)[0]
	cancel()
	if err := <-asked; !errors.Is(err, context.Canceled) {
		t.Errorf("asked: %v", err)
	}
	s.Close()
	row, err := openWith(t, cfg).Row(t.Context(), 1, "SELECT pg_catalog.pg_backend_pid()")
	if err != nil {
		t.Fatal(err)
	}
	return before, row[0]
}
