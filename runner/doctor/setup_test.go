package doctor_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// TestMain fails if an examination leaves a goroutine behind, such as that of a connection.
func TestMain(m *testing.M) {
	testserver.Parallel()
	goleak.VerifyTestMain(m)
}

var start, query = testserver.Start, testserver.Query

// config is a session's configuration with a lease that is short for a person
// and long for a slow machine.
func config(t *testing.T, dsn string) session.Config {
	t.Helper()
	database, err := session.ParseDSN(dsn, "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	return session.Config{Database: database, Lease: 6 * time.Second, ConnectTimeout: 10 * time.Second, ApplicationName: "pglead:test"}
}

// eventually waits until the condition holds; a test that waits in vain fails.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for began := time.Now(); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("never: %s", what)
		}
	}
}

func kindOf(err error) session.Kind {
	var e *session.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}
