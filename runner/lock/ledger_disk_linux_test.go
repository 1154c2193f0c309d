package lock_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

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
	if err := localpg.MakeDir(space); err != nil {
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
	// The existing pages still have room for some rows.
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
	if _, err := lock.NewCandidate(other).Acquire(t.Context(), nil); kindOf(err) != session.Unreachable || !strings.Contains(err.Error(), "53100") {
		t.Errorf("with a full disk: %v", err)
	}
	if got := advisoryLocks(t, server); got != "1" {
		t.Errorf("%s advisory locks, want the one that is held", got)
	}
	other.Wait, other.LockDelay = lock.Forever, time.Second
	waiter := contend(t, other)
	eventually(t, "one who waits tries again", func() bool { return strings.Count(strings.Join(waiter.said(), " "), "waiting") > 1 })
	release(t, held) // with a warning, or in the room that is left
	if err := os.Remove(filepath.Join(disk, "rest")); err != nil {
		t.Fatal(err)
	}
	release(t, waiter.held(t))
}
