package runner

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
)

// TestSignalDuringRelease: the server is silent when the command has ended, and the lease would let
// the release wait for 36 minutes. A signal ends the wait, also that for the record of the end during
// --min-hold.
func TestSignalDuringRelease(t *testing.T) {
	server := testserver.Start(t, nil)
	testserver.Query(t, server, ledger.InstallSQL(ledger.Plan{Keep: ledger.Keep}))
	// It stops the lock's backend.
	silence := []string{"sh", "-c", `kill -STOP "$PGLEAD_BACKEND_PID"`}
	for name, minHold := range map[string]time.Duration{"run": 0, "run with --min-hold": time.Hour} {
		t.Run(name, func(t *testing.T) {
			p, signals := signalsTo(t)
			var said bytes.Buffer
			cfg := Config{Lock: lockOn(t, server), Path: "/bin/sh", Command: silence}
			cfg.Lock.Session.Lease, cfg.Lock.LockDelay, cfg.MinHold = time.Hour, time.Second, minHold
			cfg.Lock.Claim.Keys, cfg.Lock.Ledger = []string{"job"}, ledger.Use{Mode: ledger.Require}
			text := slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn})
			cfg.Lock.Log = slog.New(atEvent{text, "exited", func() {
				backend, _ := strconv.Atoi(testserver.Query(t, server, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND (classid, objid, objsubid) = (0, 1, 1)")[0])
				t.Cleanup(func() { _ = unix.Kill(backend, unix.SIGCONT) })
				time.AfterFunc(100*time.Millisecond, func() { signals <- unix.SIGTERM })
			}})
			ended := make(chan error, 1)
			go func() {
				_, err := p.runOnce(cfg, lock.NewCandidate(cfg.Lock))
				ended <- err
			}()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Fatal("it waits for the server")
			}
			const want = "the lock could not be released, and is free when its session ends: the database did not answer in time"
			if strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), want) {
				t.Errorf("it says:\n%s", said.String())
			}
		})
	}
}
