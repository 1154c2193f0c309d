package lock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/session"
)

// clocked starts a server whose clock can be set: to so many seconds from the true time.
func clocked(t *testing.T) (server *localpg.Server, set func(seconds string)) {
	t.Helper()
	server, remove, err := localpg.Prepare(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	shim, clock := filepath.Join(server.Socket, "clockshim.so"), filepath.Join(server.Socket, "clock")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", shim, "../../testdata/clockshim/clockshim.c").CombinedOutput(); err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("NOT TESTED: a server's clock that is set, since there is no C compiler: %v", err)
		}
		t.Fatalf("%v: %s", err, out)
	}
	server.Env = []string{"LD_PRELOAD=" + shim, "CLOCKSHIM=" + clock}
	if err := server.Init(); err != nil {
		t.Fatal(err)
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	return server, func(seconds string) {
		t.Helper()
		if err := os.WriteFile(clock, []byte(seconds), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestClockSetBack: where the server's clock is set back, all requests before that seem to come
// from the future. The first in line asks for the holder's latest request all the same, and often
// enough to keep its own session.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	server, set := clocked(t)
	cfg := leased(config(t, server.DSN("postgres"), exclusive(1)), 5*time.Second)
	h := acquire(t, cfg)
	set("-100") // before the first look at its latest request
	next := contend(t, cfg)
	inLine(t, server, id(1), 1)
	time.Sleep(2 * session.HolderShare(cfg.Session.Lease)) // in which a session without a heartbeat would expire twice
	if said := next.said(); !slices.Equal(said, []string{"waiting"}) {
		t.Errorf("it said %v", said)
	}
	release(t, h)
	next.held(t)
}
