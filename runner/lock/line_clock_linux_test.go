package lock_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestClockSetBack: if the server's clock is set back, all earlier requests seem to come from the
// future. The first in line asks for the holder's latest request all the same, and often enough to
// keep its own session.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	server, remove, err := localpg.Prepare(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	set := testserver.Clock(t, server)
	if set == nil {
		t.Skip("NOT TESTED: see above")
	}
	if err := errors.Join(server.Init(), server.StartLogged()); err != nil {
		t.Fatal(err)
	}
	cfg := leased(config(t, server.DSN("postgres"), exclusive(1)), 5*time.Second)
	h := acquire(t, cfg)
	set(-100) // before the first look at its latest request
	next := contend(t, cfg)
	inLine(t, server, id(1), 1)
	time.Sleep(2 * leasetime.HolderShare(cfg.Session.Lease)) // in this time a session without a heartbeat would expire twice
	if said := next.said(); !slices.Equal(said, []string{"waiting"}) {
		t.Errorf("it said %v", said)
	}
	release(t, h)
	next.held(t)
}
