package session_test

import (
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// TestClientTerminated: the error of a question whose connection ends under it names the database.
func TestClientTerminated(t *testing.T) {
	server := testserver.Start(t, nil)
	client, err := session.OpenClient(t.Context(), config(t, server.DSN("postgres")))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.Query(t.Context(), "SELECT pg_terminate_backend(pg_backend_pid())")
	if err == nil || !strings.HasPrefix(err.Error(), "the connection to ") || !strings.Contains(err.Error(), "/postgres ended: terminating connection") {
		t.Errorf("the error is %v", err)
	}
}
