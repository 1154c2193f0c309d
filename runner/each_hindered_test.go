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
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
)

// hinderedList works on n items that obstacles are in the way of. The command of item 2 takes as long
// as is given.
func hinderedList(locking lock.Config, n int, second string) (tally Tally, mostHindered int32, said string, err error) {
	var log bytes.Buffer
	locking.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	var most atomic.Int32
	tally, err = Each(EachConfig{
		Config: Config{Lock: locking, Path: "/bin/sleep"}, Parallel: 1,
		Items: func(yield func(string) bool) {
			for i := 1; i <= n && yield(fmt.Sprint(i)); i++ {
			}
		},
		Task: func(item string) Task {
			takes := "0"
			if item == "2" {
				takes = second
			}
			return Task{Key: item, ID: lockkey.SipHash24(item), Command: []string{"sleep", takes}}
		},
		Progress: func(n Tally) { most.Store(max(most.Load(), int32(n.Hindered))) },
	})
	return tally, most.Load(), log.String(), err
}

// writesFail is the configuration of a lock on a server with a ledger. A write to that one's table of
// locks fails if the SQL condition is true. In it, n is the number of the write.
func writesFail(t *testing.T, condition string) lock.Config {
	t.Helper()
	server := testserver.Start(t, nil)
	testserver.Query(t, server, ledger.InstallSQL(ledger.Plan{Keep: ledger.Keep}))
	testserver.Query(t, server, fmt.Sprintf(`CREATE SEQUENCE public.writes; CREATE SEQUENCE public.starts;
CREATE FUNCTION public.full() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE n bigint := nextval('public.writes'); BEGIN
	IF (%s) THEN
		RAISE 'could not extend file' USING ERRCODE = 'disk_full';
	END IF;
	RETURN NEW;
END $$;
CREATE TRIGGER disk BEFORE INSERT OR UPDATE ON pglead.lock FOR EACH ROW EXECUTE FUNCTION public.full()`, condition))
	locking := lockOn(t, server)
	locking.Ledger.Mode, locking.LockDelay = ledger.Require, time.Second
	return locking
}

// TestEachHindered: while the ledger can't be written, a list with --wait warns once, and pauses.
// When that takes long, it skips an item, to which it comes back. The others are left for the time
// after the obstacle. If that is in the way of some items alone, the others run.
func TestEachHindered(t *testing.T) {
	for name, tt := range map[string]struct {
		fails   string // which writes
		wait    time.Duration
		second  string // what the second item takes
		tally   Tally
		skipped int32
		delays  int
		// warnings of obstacles: one for each row of them
		warnings int
		pauses   time.Duration // that it has to make: for n obstacles, n from 0.1 s, 0.2 s, …
	}{
		"for a moment":        {"n <= 2", lock.Forever, "0", Tally{Ran: 20}, 0, 0, 1, 300 * time.Millisecond},
		"for longer":          {"n <= 6", lock.Forever, "0", Tally{Ran: 20}, 2, 2, 1, 5 * time.Second},
		"in a long command":   {"CASE WHEN NEW.key = '3' AND TG_OP = 'INSERT' THEN nextval('public.starts') <= 2 END", 2 * time.Second, "2.5", Tally{Ran: 20}, 0, 0, 1, 100 * time.Millisecond},
		"for some items":      {"NEW.key IN ('1', '3', '4')", time.Second, "0", Tally{Ran: 17, Hindered: 3}, 3, 0, 2, 2 * time.Second},
		"for all of the time": {"true", time.Second, "0", Tally{Hindered: 20}, 20, 0, 1, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits a lot
			locking := writesFail(t, tt.fails)
			locking.Wait = tt.wait
			began := time.Now()
			tally, skipped, said, err := hinderedList(locking, 20, tt.second)
			if took := time.Since(began); err != nil || tally != tt.tally || skipped != tt.skipped || took < tt.pauses {
				t.Errorf("%+v, %d were skipped, %v; after %v", tally, skipped, err, took)
			}
			warnings, delays := strings.Count(said, "\n"), strings.Count(said, "event=delayed")
			if obstacles := strings.Count(said, "could not extend file (53100); free space on the server"); delays != tt.delays ||
				obstacles != warnings-delays || obstacles != tt.warnings {
				t.Errorf("it says %s", said)
			}
		})
	}
}

// TestEachRefusedTries: while the server rejects each try, the list stays at the item, also if it
// fetches ahead.
func TestEachRefusedTries(t *testing.T) {
	server := testserver.Start(t, nil)
	testserver.Query(t, server, `CREATE SEQUENCE public.tries;
ALTER FUNCTION pg_catalog.pg_try_advisory_lock(bigint) RENAME TO really_try;
CREATE FUNCTION pg_catalog.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
	IF nextval('public.tries') BETWEEN 3 AND 5 THEN
		RAISE 'out of shared memory' USING ERRCODE = 'out_of_memory';
	END IF;
	RETURN pg_catalog.really_try($1);
END $$`)
	locking := lockOn(t, server)
	locking.LockDelay, locking.Wait = time.Second, lock.Forever
	tally, skipped, said, err := hinderedList(locking, 20, "0.5")
	if err != nil || tally != (Tally{Ran: 20}) || skipped > 0 {
		t.Errorf("%+v, %d were skipped, %v", tally, skipped, err)
	}
	if strings.Count(said, "\n") != 2 || strings.Count(said, "event=waiting") != 1 || strings.Count(said, "event=delayed") != 1 {
		t.Errorf("it says %s", said)
	}
}
