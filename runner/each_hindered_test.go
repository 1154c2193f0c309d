package runner

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
)

// TestEachHindered: while the ledger can't be written, a list with --wait warns once, and pauses.
// When that takes long, it skips an item, to which it comes back. The others are left for the time
// after the obstacle. With a shorter --wait the obstacle ends the list.
func TestEachHindered(t *testing.T) {
	server := testserver.Start(t, nil)
	testserver.Query(t, server, ledger.InstallSQL(ledger.Plan{Keep: ledger.Keep}))
	for name, tt := range map[string]struct {
		obstacles int // in a row
		wait      time.Duration
		skipped   int32
		delays    int
		ends      bool // the list
	}{
		"for a moment": {obstacles: 2, wait: lock.Forever},
		"for longer":   {obstacles: 6, wait: lock.Forever, skipped: 2, delays: 2},
		"for too long": {obstacles: 1000, wait: time.Second, ends: true},
	} {
		breakLedger(t, server, tt.obstacles)
		locking := lockOn(t, server)
		locking.Ledger.Mode, locking.LockDelay, locking.Wait = ledger.Require, time.Second, tt.wait
		var said bytes.Buffer
		locking.Log = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
		const items = 50
		var skipped atomic.Int32
		tally, err := Each(EachConfig{
			Config: Config{Lock: locking, Path: "/bin/true"}, Parallel: 1,
			Items: func(yield func(string) bool) {
				for n := 1; n <= items && yield(name+fmt.Sprint(n)); n++ {
				}
			},
			Task: func(item string) Task {
				return Task{Key: item, ID: lockkey.SipHash24(item), Command: []string{"true"}}
			},
			Progress: func(n Tally) { skipped.Store(max(skipped.Load(), int32(n.Hindered))) },
		})
		if tt.ends {
			if err == nil || err.Error() != "the ledger: could not extend file (53100)" || tally != (Tally{}) {
				t.Errorf("%s: %+v, %v", name, tally, err)
			}
		} else if err != nil || tally != (Tally{Ran: items}) || skipped.Load() != tt.skipped {
			t.Errorf("%s: %+v, %d had been skipped, %v", name, tally, skipped.Load(), err)
		}
		warnings, delays := strings.Count(said.String(), "\n"), strings.Count(said.String(), "event=delayed")
		if delays != tt.delays || warnings-delays != 1 || strings.Count(said.String(), `could not extend file (53100); free space on the server" item="`+name+`1" event=ledger`) != 1 {
			t.Errorf("%s: it says %s", name, said.String())
		}
	}
}

// breakLedger lets the next writes to the ledger's table of locks fail.
func breakLedger(t *testing.T, server *localpg.Server, writes int) {
	t.Helper()
	testserver.Query(t, server, fmt.Sprintf(`DROP SEQUENCE IF EXISTS public.writes; CREATE SEQUENCE public.writes;
CREATE OR REPLACE FUNCTION public.full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	IF nextval('public.writes') <= %d THEN
		RAISE 'could not extend file' USING ERRCODE = 'disk_full';
	END IF;
	RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER disk BEFORE INSERT ON pglead.lock FOR EACH STATEMENT EXECUTE FUNCTION public.full()`, writes))
}
