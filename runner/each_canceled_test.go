package runner

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// canceling is a server on which a function cancels the query that calls it, once it has done its
// work, when a sequence of its name has come to armed. arm makes that its nth call from now on.
func canceling(t *testing.T) (server *localpg.Server, arm func(function string, nth int)) {
	t.Helper()
	server = testserver.Start(t, nil)
	for name, of := range map[string][3]string{
		"pg_try_advisory_lock":      {"bigint", "$1", "boolean"},
		"pg_try_advisory_xact_lock": {"bigint", "$1", "boolean"},
		"pg_logical_emit_message":   {"boolean, text, text", "$1, $2, $3", "pg_lsn"},
		"left":                      {"text, integer", "$1, $2", "text"},
	} {
		testserver.Query(t, server, fmt.Sprintf(`CREATE SEQUENCE public.%[1]s_; ALTER FUNCTION pg_catalog.%[1]s(%[2]s) RENAME TO really_%[1]s;
CREATE FUNCTION pg_catalog.%[1]s(%[2]s) RETURNS %[4]s LANGUAGE plpgsql AS $$ BEGIN
	IF nextval('public.%[1]s_') = %[5]d THEN
		PERFORM pg_catalog.really_%[1]s(%[3]s), pg_cancel_backend(pg_backend_pid()), pg_sleep(60);
	END IF;
	RETURN pg_catalog.really_%[1]s(%[3]s);
END $$`, name, of[0], of[1], of[2], armed))
	}
	return server, func(function string, nth int) {
		testserver.Query(t, server, fmt.Sprintf("SELECT setval('public.%s_', %d, false)", function, armed+1-nth))
	}
}

const armed = 1000

// hasCanceled says whether the function has canceled a query.
func hasCanceled(t *testing.T, server *localpg.Server, function string) bool {
	t.Helper()
	return testserver.Query(t, server, fmt.Sprintf("SELECT is_called AND last_value >= %d FROM public.%s_", armed, function))[0] == "t"
}

// eachOf works on these items.
func eachOf(locking lock.Config, items ...string) (Tally, error) {
	return Each(EachConfig{
		Config: Config{Lock: locking, Path: "/bin/true"}, Items: slices.Values(items), Parallel: 1,
		Task: func(item string) Task {
			id, _ := lockkey.Parse(item)
			return Task{Key: item, ID: id, Command: []string{"true"}}
		},
		Progress: func(Tally) {},
	})
}

// TestEachCanceled: somebody cancels a query by which a list takes an item's lock. With --wait the
// list comes back to the item. Without, it ends, and says why.
func TestEachCanceled(t *testing.T) {
	const try, tryXact, message = "pg_try_advisory_lock", "pg_try_advisory_xact_lock", "pg_logical_emit_message"
	server, arm := canceling(t)
	for name, tt := range map[string]struct {
		function    string // that the canceled query calls
		where       string // in the error without --wait
		nth         int    // of its calls
		transaction bool
	}{
		"try":                  {try, "lock 2", 2, false},
		"draw":                 {message, "lock 2", 3, false}, // the second call announces the first item's end
		"try in a transaction": {tryXact, "lock 1", 1, true},
		"begin":                {tryXact, "lock 1", 2, true},
		"draw beside it":       {message, "the second session", 1, true},
	} {
		for _, wait := range []time.Duration{0, lock.Forever} {
			arm(tt.function, tt.nth)
			locking := lockOn(t, server)
			locking.Wait, locking.LockDelay, locking.Session.Transaction = wait, time.Second, tt.transaction
			var said bytes.Buffer
			locking.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
			tally, err := eachOf(locking, "1", "2", "3")
			if warnings := strings.Count(said.String(), "event=waiting"); wait > 0 && warnings != 1 ||
				warnings > 0 && !strings.Contains(said.String(), "canceling statement due to user request") {
				t.Errorf("%s, with --wait %v: it says %s", name, wait, said.String())
			}
			switch {
			case wait == 0 && (!session.HasCode(err, session.QueryCanceled) || !session.Passing(err) || !strings.HasPrefix(err.Error(), tt.where+": ")):
				t.Errorf("%s, without a wait: %v", name, err)
			case wait > 0 && (err != nil || tally != Tally{Ran: 3}):
				t.Errorf("%s: %+v, %v", name, tally, err)
			}
			if !hasCanceled(t, server, tt.function) {
				t.Errorf("%s: nothing was canceled", name)
			}
		}
	}
}

// TestEachCanceledLook: somebody cancels the look by which a list finds out about the holder of an
// item. The list comes back to the item.
func TestEachCanceledLook(t *testing.T) {
	server, arm := canceling(t)
	locking := lockOn(t, server)
	locking.LockDelay = time.Second
	other := locking
	other.Claim.IDs = []lockkey.ID{id(2)}
	held, err := lock.NewCandidate(other).Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	const look = "left" // which it calls, and so does the draw of a token
	arm(look, 1)
	ended := make(chan error, 1)
	go func() {
		tally, err := eachOf(locking, "2", "1", "3")
		if err == nil && tally != (Tally{Ran: 3}) {
			err = fmt.Errorf("%+v", tally)
		}
		ended <- err
	}()
	testserver.Eventually(t, "the look is canceled", func() bool { return hasCanceled(t, server, look) })
	testserver.Eventually(t, "the list keeps no mark of a line in which it does not listen", func() bool { return !hasMark(t, server) })
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestEachCanceledLater: an item is held in the first pass, and its try is canceled in the second.
func TestEachCanceledLater(t *testing.T) {
	server, arm := canceling(t)
	locking := lockOn(t, server)
	locking.LockDelay = time.Second
	var said bytes.Buffer
	locking.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	other := locking
	other.Claim.IDs, other.Log = []lockkey.ID{id(2)}, slog.New(slog.DiscardHandler)
	held, err := lock.NewCandidate(other).Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	ended := make(chan error, 1)
	go func() {
		tally, err := eachOf(locking, "2")
		if err == nil && tally != (Tally{Ran: 1}) {
			err = fmt.Errorf("%+v", tally)
		}
		ended <- err
	}()
	testserver.Eventually(t, "the list listens until it comes back", func() bool { return hasMark(t, server) })
	const try = "pg_try_advisory_lock"
	arm(try, 1)
	testserver.Eventually(t, "the try is canceled", func() bool { return hasCanceled(t, server, try) })
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := strings.Count(said.String(), "level=WARN msg=\"the lock could not be taken"); n != 1 {
		t.Errorf("%d warnings: %s", n, said.String())
	}
}

// hasMark says whether a session has the common mark of lock 2's line.
func hasMark(t *testing.T, server *localpg.Server) bool {
	t.Helper()
	mark := advisory.CommonMarkOf(id(2))
	return testserver.Query(t, server, fmt.Sprintf("SELECT count(*) FROM pg_locks WHERE (classid, objid, objsubid) = (%d, %d, %d)",
		mark.ClassID(), mark.ObjID(), mark.ObjSubID()))[0] != "0"
}
