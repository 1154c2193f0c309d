package e2e

import (
	"bufio"
	"regexp"
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
)

// TestWatchIdle: ls --watch is not ended by the role's idle_session_timeout, and gives the server's
// reason when it is ended.
func TestWatchIdle(t *testing.T) {
	racesNothing(t)
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	watcher := connected(t, server, "CREATE ROLE idler LOGIN; ALTER ROLE idler SET idle_session_timeout = '100ms'")
	dsn := strings.Replace(server.DSN("postgres"), "user="+localpg.Superuser, "user=idler", 1)
	cmd := command(t, "ls", "--watch", "-o", "json", "--dsn", dsn)
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	looks := bufio.NewReader(stdout)
	for range 2 { // with two seconds in between
		if text, err := looks.ReadString('\n'); err != nil || text != "[]\n" {
			t.Errorf("it shows %q, %v: %s", text, err, stderr.String())
		}
	}
	if _, err := watcher.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'idler'").ReadAll(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 69 || !regexp.MustCompile(`\Apglead: the connection to \S+:5432/postgres ended: terminating connection due to administrator command \(57P01\)\n\z`).MatchString(stderr.String()) {
		t.Errorf("exit status %d: %s", status, stderr.String())
	}
}
