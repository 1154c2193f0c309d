// Package testserver starts PostgreSQL for the length of a test, and asks it
// questions that must not fail. Only tests import it.
package testserver

import (
	"errors"
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
)

// Start starts a throwaway server. All of a test program's are of the same cluster: see fill.
func Start(t *testing.T, settings map[string]string) *localpg.Server {
	t.Helper()
	return begin(t, settings, fill)
}

// StartApart starts one that is another cluster than all others.
func StartApart(t *testing.T, settings map[string]string) *localpg.Server {
	t.Helper()
	return begin(t, settings, (*localpg.Server).Init)
}

func begin(t *testing.T, settings map[string]string, makeData func(*localpg.Server) error) *localpg.Server {
	t.Helper()
	server, remove, err := localpg.Prepare(settings)
	if errors.Is(err, localpg.ErrNoPrograms) {
		t.Fatalf("%v - to install them: %s", err, localpg.InstallHint())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	if err := makeData(server); err != nil {
		t.Fatal(err)
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	return server
}

// Port is a TCP port of this machine on which nobody listens.
func Port(t *testing.T) string {
	t.Helper()
	port, err := localpg.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Query returns the values of a query's answer.
func Query(t *testing.T, server *localpg.Server, sql string) []string {
	t.Helper()
	values, err := server.Query("postgres", sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

// Pooled starts a pooler with connections for role, and returns its DSN.
func Pooled(t *testing.T, server *localpg.Server, role, mode string, connections int) (dsn string) {
	t.Helper()
	dsn, _ = Pooler(t, server, role, map[string]string{
		"pool_mode": mode, "default_pool_size": strconv.Itoa(connections), "query_wait_timeout": "2",
	})
	return dsn
}

// Pooler starts a pooler for role, and ends it with the test, unless stop was called before. Where
// there is no such program the test is skipped, except in CI.
func Pooler(t *testing.T, server *localpg.Server, role string, settings map[string]string) (dsn string, stop func()) {
	t.Helper()
	dsn, stop, err := server.Pooler(role, settings)
	if errors.Is(err, localpg.ErrNoPooler) && os.Getenv("CI") == "" {
		t.Skip("NOT TESTED: poolers, since there is", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return dsn, stop
}

// Eventually waits until the condition holds; a test that waits in vain fails. To ask a server
// costs some milliseconds of a processor, for a connection: whoever looks more often slows down
// all other tests.
func Eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for began := time.Now(); !condition(); time.Sleep(30 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("never: %s", what)
		}
	}
}

// Parallel lets several of the parallel tests run at once, unless -parallel gives a number:
// tests with their own servers wait more than they compute. TestMain calls it.
func Parallel() {
	const several = "4"
	given := false
	flag.Parse()
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", several); err != nil {
		panic(err) // it is a flag of go test
	}
}
