package runner

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
)

// TestSignalDuringRelease: the server is silent when the command has ended, and the lease would let
// the release wait for 36 minutes. A signal, before or meanwhile, ends the wait. So it does for the
// record of the end during --min-hold.
func TestSignalDuringRelease(t *testing.T) {
	server := testserver.Start(t, nil)
	testserver.Query(t, server, ledger.InstallSQL(ledger.Plan{Keep: ledger.Keep}))
	// It stops the lock's backend.
	silence := []string{"sh", "-c", `kill -STOP "$PGLEAD_BACKEND_PID"`}
	for name, of := range map[string]func(p *instance, cfg Config) error{
		"run": func(p *instance, cfg Config) error {
			_, err := p.runOnce(cfg, lock.NewCandidate(cfg.Lock))
			return err
		},
		"run with --min-hold": func(p *instance, cfg Config) error {
			cfg.MinHold, cfg.Lock.Claim.Keys, cfg.Lock.Ledger = time.Hour, []string{"job"}, ledger.Use{Mode: ledger.Require}
			_, err := p.runOnce(cfg, lock.NewCandidate(cfg.Lock))
			return err
		},
		"each": func(p *instance, cfg Config) error {
			_, err := p.workOn(EachConfig{
				Config: cfg, Items: slices.Values([]string{"1"}), Parallel: 1, Progress: func(Tally) {},
				Task: func(item string) Task {
					id, _ := lockkey.Parse(item)
					return Task{Key: item, ID: id, Command: cfg.Command}
				},
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, signals := signalsTo(t)
			var said bytes.Buffer
			cfg := Config{Lock: lockOn(t, server), Path: "/bin/sh", Command: silence}
			cfg.Lock.Session.Lease, cfg.Lock.LockDelay = time.Hour, time.Second
			text := slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn})
			cfg.Lock.Log = slog.New(atEvent{text, "exited", func() {
				backend, _ := strconv.Atoi(testserver.Query(t, server, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND (classid, objid, objsubid) = (0, 1, 1)")[0])
				t.Cleanup(func() { _ = unix.Kill(backend, unix.SIGCONT) })
				time.AfterFunc(100*time.Millisecond, func() { signals <- unix.SIGTERM })
			}})
			ended := make(chan error, 1)
			go func() { ended <- of(p, cfg) }()
			select {
			case err := <-ended:
				if err != nil && !errors.As(err, new(*InterruptedError)) {
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
