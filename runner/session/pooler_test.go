package session_test

import (
	"context"
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
