package lock_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/pgtest"
	"github.com/pglead/pglead/runner/session"
)

// TestLedgerQuorum has a ledger's rows be confirmed by a standby, which is promoted.
func TestLedgerQuorum(t *testing.T) {
	primary, dsn := remembering(t, map[string]string{"wal_receiver_status_interval": "100ms"})
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	query(t, primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	query(t, primary, "SELECT pg_reload_conf()")
	cfg := withQuorum(ledgered(config(t, dsn, exclusive(7))))
	for range 2 {
		release(t, ended(acquire(t, cfg), ledger.OK))
	}
	late := contend(t, cfg)
	held := late.held(t)
	if slices.Contains(late.said(), "delayed") {
		t.Error("waited after a clean end")
	}
	if err := primary.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-held.Lost()
	if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, standby); got != "nightly  t t f" {
		t.Errorf("the standby has the row %s", got)
	}
	after := contend(t, ledgered(config(t, as(t, standby, "cron"), exclusive(7))))
	eventually(t, "the first on the new primary waits", func() bool { return slices.Contains(after.said(), "delayed") })
}

// TestLedgerPromotion has a standby that lacks the last rows be promoted: what it says
// to have ended clean is of another timeline.
func TestLedgerPromotion(t *testing.T) {
	primary, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	release(t, acquire(t, cfg))
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	if err := primary.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	there := ledgered(config(t, as(t, standby, "cron"), exclusive(7)))
	there.Session.Private = false // so that its age counts
	after := contend(t, there)
	eventually(t, "the first on the new primary waits", func() bool { return slices.Contains(after.said(), "delayed") })
}

// TestLedgerDiskFull has the ledger on a disk without room.
func TestLedgerDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: a full disk, since a small one needs root")
	}
	server, dsn := remembering(t, map[string]string{"autovacuum": "off"})
	disk := filepath.Join(filepath.Dir(server.Data), "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("NOT TESTED: a full disk, since there is no tmpfs:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	space := filepath.Join(disk, "space")
	if err := pgtest.MakeDir(space); err != nil {
		t.Fatal(err)
	}
	query(t, server, "CREATE TABLESPACE small LOCATION '"+space+"'")
	query(t, server, "ALTER TABLE pglead.lock SET TABLESPACE small; ALTER TABLE pglead.run SET TABLESPACE small; CREATE TABLE public.filler (text text) TABLESPACE small")
	cfg := ledgered(config(t, dsn, exclusive(7)))
	cfg.Wait = 0
	held := acquire(t, cfg)
	if err := os.WriteFile(filepath.Join(disk, "rest"), make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk has room")
	}
	// The pages that there are have room for some rows yet.
	for number := 1000; ; number += 100 {
		_, err := server.Query("postgres", fmt.Sprintf("INSERT INTO pglead.lock (number, sub, note) SELECT n, 1, repeat('x', 100) FROM generate_series(%d, %d) AS n", number, number+99))
		if err != nil {
			if !strings.Contains(err.Error(), "53100") {
				t.Fatal(err)
			}
			break
		}
	}
	for number := 5000; ; number++ {
		if _, err := server.Query("postgres", fmt.Sprintf("INSERT INTO pglead.lock (number, sub) VALUES (%d, 1)", number)); err != nil {
			break
		}
	}
	other := cfg
	other.Claim = exclusive(8)
	if _, err := lock.Acquire(t.Context(), other); kindOf(err) != session.Unreachable || !strings.Contains(err.Error(), "53100") {
		t.Errorf("with a full disk: %v", err)
	}
	if got := advisoryLocks(t, server); got != "1" {
		t.Errorf("%s advisory locks, want the one that is held", got)
	}
	other.Wait, other.LockDelay = lock.Forever, time.Second
	waiter := contend(t, other)
	eventually(t, "one who waits tries again", func() bool { return strings.Count(strings.Join(waiter.said(), " "), "waiting") > 1 })
	release(t, held) // with a warning, or in what room there is
	if err := os.Remove(filepath.Join(disk, "rest")); err != nil {
		t.Fatal(err)
	}
	release(t, waiter.held(t))
}
