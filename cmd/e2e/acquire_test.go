package e2e

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// slowToken makes a server's tokens wait for a lock that the test has: the drawing
// of one can take long, for the disk's or a standby's sake. (The server takes a
// function of its own from its catalog only where it can expand it in place.)
const slowToken = `CREATE OR REPLACE FUNCTION pg_catalog.pg_logical_emit_message(transactional boolean, prefix text, message text)
RETURNS pg_lsn LANGUAGE sql VOLATILE AS $$ SELECT (pg_catalog.left(pg_catalog.pg_advisory_xact_lock_shared(99)::text, 0) || '0/0')::pg_lsn $$`

// TestLostBeforeStart: a lock that is lost while its token is drawn on another
// connection starts nothing, since somebody else may have it by then.
func TestLostBeforeStart(t *testing.T) {
	server := throwaway(t, nil)
	pooler := testserver.Pooled(t, server, localpg.Superuser, "transaction", 4)
	ask(t, server, slowToken)
	for name, dsn := range map[string]string{"direct": server.DSN("postgres"), "pooler": pooler} {
		t.Run(name, func(t *testing.T) {
			slow := connected(t, server, "SELECT pg_advisory_lock(99)")
			never := filepath.Join(t.TempDir(), "never")
			first := launch(t, "run", "--transaction", "--dsn", dsn, "--key-scheme", "int", "--key", "7", "--lock-delay", "0", "--", "touch", never)
			if !eventually(func() bool {
				return ask(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 99 AND NOT granted")[0] == "1"
			}) {
				t.Fatalf("the token is never drawn: %s", first.said)
			}
			ask(t, server, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7")
			free := func() bool {
				return ask(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7")[0] == "0"
			}
			if !eventually(free) {
				t.Fatal("the lock is never lost")
			}
			newcomer := connected(t, server, "SELECT pg_advisory_lock(7)")
			if err := slow.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			status := first.ends()
			if _, err := os.Stat(never); err == nil {
				t.Error("the command was started under a lock that somebody else has")
			}
			if status != 69 || strings.Count(first.said.String(), "\n") != 1 ||
				!strings.HasPrefix(first.said.String(), "pglead: 7: the command was not started: the session in ") ||
				!strings.HasSuffix(first.said.String(), " was lost: the server ended the session: terminating connection due to administrator command (57P01)\n") {
				t.Errorf("status %d, want 69; it says %q", status, first.said)
			}
			if _ = newcomer.Close(t.Context()); !eventually(free) {
				t.Error("the newcomer keeps the lock")
			}
		})
	}
}

// TestYoungServer: a server that has just come up may have had a holder before,
// also if it has no TCP: there are poolers, ssh and socat.
func TestYoungServer(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := throwaway(t, nil)
	run := func() []float64 {
		t.Helper()
		status, said := outcome(t, "run", "--dsn", server.DSN("postgres"), "--key", "young", "--lock-delay", "4s", "--log-format", "json", "-v", "--", "true")
		if status != 0 {
			t.Errorf("status %d: %s", status, said)
		}
		return delayed(t, said)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			if err := server.Stop(syscall.SIGQUIT); err != nil {
				t.Fatal(err)
			}
			if err := server.StartLogged(); err != nil {
				t.Fatal(err)
			}
		}
		if delays := run(); len(delays) != 1 || delays[0] <= 0 || delays[0] > 4 {
			t.Errorf("on a server that has just come up a first try waits %v s, of a lock-delay of 4 s", delays)
		}
		if delays := run(); len(delays) != 0 {
			t.Errorf("on a server that has been up for the lock-delay a first try waits %v s", delays)
		}
	}
}

// TestServerClock: however a server's clock is set, a first try waits for no longer
// than the lock-delay.
func TestServerClock(t *testing.T) {
	t.Parallel() // it has a server of its own
	port := testserver.Port(t)
	server, remove, err := localpg.Prepare(map[string]string{"listen_addresses": "127.0.0.1", "port": port})
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
	for _, crash := range []bool{false, true} {
		if crash { // then the last checkpoint counts, too
			set(0)
			if err := errors.Join(server.Stop(syscall.SIGQUIT), server.StartLogged()); err != nil {
				t.Fatal(err)
			}
		}
		set(-3600)
		if ahead := ask(t, server, "SELECT pg_postmaster_start_time() > clock_timestamp() + interval '50 min'")[0]; ahead != "t" {
			t.Fatal("the server's clock is not set back")
		}
		run := launch(t, "run", "--dsn", server.DSN("postgres"), "--key", "clock", "--lock-delay", "2s", "--log-format", "json", "-v", "--", "true")
		if !eventually(func() bool { return strings.Contains(run.said.String(), `"delayed"`) }) {
			t.Fatalf("no delay: %s", run.said)
		}
		if delays := delayed(t, run.said.String()); len(delays) != 1 || delays[0] > 2 {
			t.Fatalf("crash %v: with a clock that was set back a first try waits %v s, of a lock-delay of 2 s", crash, delays)
		}
		if status := run.ends(); status != 0 {
			t.Errorf("status %d: %s", status, run.said)
		}
	}
}

// TestAllOrNothing: who wants several locks and doesn't wait gives back what it was
// granted of them before anything else can happen to it, so that it is in the way of
// nobody who could run. This one says nothing more after its try.
func TestAllOrNothing(t *testing.T) {
	server := throwaway(t, nil)
	holder := connected(t, server, "SELECT pg_advisory_lock(10)")
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", filepath.Join(server.Socket, ".s.PGSQL.5432"))
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(client, to) }()
			go func() {
				buf := make([]byte, 1<<16)
				for {
					n, err := client.Read(buf)
					if err != nil {
						_ = to.Close()
						return
					}
					_, _ = to.Write(buf[:n])
					if bytes.Contains(buf[:n], []byte("try_advisory")) {
						return
					}
				}
			}()
		}
	}()
	run := launch(t, "run", "--dsn", "host="+dir+" user=pglead dbname=postgres", "--key-scheme", "int", "--key", "3", "--key", "10", "--key", "12", "--lock-delay", "0", "--", "true")
	if !eventually(func() bool {
		return ask(t, server, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%' AND state = 'idle' AND query LIKE '%pg_is_in_recovery%'")[0] == "1"
	}) {
		t.Fatalf("it never tries: %s", run.said)
	}
	if held := ask(t, server, "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND objid <> 10"); len(held) != 0 {
		t.Errorf("of 3, 10 and 12, with 10 taken, it holds %v", held)
	}

	// When it may speak, it takes all or says who has them.
	if status, said := outcome(t, "run", "--dsn", server.DSN("postgres"), "--key-scheme", "int", "--key", "3", "--key", "10", "--lock-delay", "0", "--", "true"); status != 75 || !strings.Contains(said, "held elsewhere") {
		t.Errorf("status %d: %s", status, said)
	}
	if err := holder.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool {
		return ask(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0] == "0"
	}) {
		t.Error("a lock is left")
	}
	if status, said := outcome(t, "run", "--dsn", server.DSN("postgres"), "--key-scheme", "int", "--key", "3", "--key", "10", "--lock-delay", "0", "--", "true"); status != 0 || said != "" {
		t.Errorf("status %d: %s", status, said)
	}
}

// TestLongestLease: TCP and the server take the longest lease that there may be, with the longest
// other times.
func TestLongestLease(t *testing.T) {
	t.Parallel() // it has a server of its own
	dsn := openServer(t)
	for _, mode := range []string{"--transaction=false", "--transaction"} {
		args := []string{"run", mode, "--dsn", dsn, "--key", "long", "--lease", "24h"}
		for _, flag := range []string{"--lost-grace", "--timeout", "--kill-after", "--connect-timeout", "--wait"} {
			args = append(args, flag, "3650d")
		}
		if status, said := outcome(t, append(args, "--lock-delay", "0", "--", "true")...); status != 0 || said != "" {
			t.Errorf("%s: status %d: %s", mode, status, said)
		}
	}
}
