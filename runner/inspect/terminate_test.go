package inspect

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestTerminate: a backend that doesn't end, since it is stopped, is not said to be ended.
func TestTerminate(t *testing.T) {
	server := testserver.Start(t, nil)
	var conns [2]*pgconn.PgConn
	for i := range conns {
		conn, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		conns[i] = conn
	}
	on, pid := bare{conns[0]}, conns[1].PID()
	if err := unix.Kill(int(pid), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	gone := func() bool {
		return len(testserver.Query(t, server, "SELECT pid FROM pg_stat_activity WHERE pid = "+strconv.Itoa(int(pid)))) == 0
	}
	err := Terminate(t.Context(), on, pid)
	if err == nil || !strings.HasSuffix(err.Error(), "it was told to end, and has not within 5s") || gone() {
		t.Errorf("a stopped backend: %v; gone: %t", err, gone())
	}
	if err := unix.Kill(int(pid), unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testserver.Eventually(t, "the backend ends", gone)
	if err := Terminate(t.Context(), on, pid); err == nil || err.Error() != "there is no session "+strconv.Itoa(int(pid))+" any more" {
		t.Errorf("a backend that has ended: %v", err)
	}
	if err := Terminate(t.Context(), on, conns[0].PID()+1<<20); err == nil {
		t.Error("a backend that never was there is ended")
	}
}
