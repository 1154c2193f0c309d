package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
)

// atEvent logs, and calls happens when the log has an event.
type atEvent struct {
	slog.Handler
	event   string
	happens func()
}

func (h atEvent) Enabled(context.Context, slog.Level) bool { return true }

func (h atEvent) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h atEvent) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "event" && a.Value.String() == h.event {
			h.happens()
		}
		return true
	})
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// TestLostBeforeStart: the session of a run ends after its start was announced, and before its
// command starts. The next in line does not wait until such a command would certainly be dead.
func TestLostBeforeStart(t *testing.T) {
	server := testserver.Start(t, nil)
	locking := lockOn(t, server)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	inLine := func(n string) func() bool {
		return func() bool {
			return testserver.Query(t, server, "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2")[0] == n
		}
	}
	first, err := lock.NewCandidate(locking).Acquire(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()

	unlucky := Config{Lock: locking, Path: "/bin/true", Command: []string{"true"}}
	unlucky.Lock.Log = slog.New(atEvent{slog.DiscardHandler, "acquired", func() {
		testserver.Query(t, server, `SELECT pg_terminate_backend(pid, 10000) FROM pg_locks
			WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = 1 AND objsubid = 1`)
	}})
	unlucky.Lock.Wait = time.Minute
	ended := make(chan error, 1)
	go func() {
		_, err := Run(unlucky)
		ended <- err
	}()
	testserver.Eventually(t, "the second stands in line", inLine("1"))
	next := make(chan error, 1)
	go func() {
		held, err := lock.NewCandidate(locking).Acquire(ctx, nil)
		if err == nil {
			held.Close()
		}
		next <- err
	}()
	testserver.Eventually(t, "the third stands in line", inLine("2"))
	if err := first.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "terminating connection") || errors.As(err, new(*LockLostError)) {
		t.Errorf("the second: %v", err)
	}
	if err := <-next; err != nil {
		t.Errorf("the third: %v", err)
	}
}

// signalsTo is a process, and the channel of the signals that it gets.
func signalsTo(t *testing.T) (*process, chan os.Signal) {
	t.Helper()
	parent, err := child.NewParent(nil)
	if err != nil {
		t.Fatal(err)
	}
	signals, catching := make(chan os.Signal, 64), make(chan struct{})
	close(catching)
	return &process{parent: parent, caught: signals, catching: catching}, signals
}

// TestSignalAfterLoss: a session is lost before the command starts, and a signal ends the report of
// that. Lead has to know of the signal, though the run has had another signalTaker before.
func TestSignalAfterLoss(t *testing.T) {
	server := testserver.Start(t, nil)
	p, signals := signalsTo(t)
	cfg := Config{Lock: lockOn(t, server), Path: "/bin/true", Command: []string{"true"}}
	acquired := false
	cfg.Lock.Log = slog.New(atEvent{slog.DiscardHandler, "acquired", func() {
		acquired = true
		testserver.Query(t, server, "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1")
	}})
	cfg.Lock.Observer.Alive = func(time.Duration) {
		if acquired { // so the report begins
			signals <- unix.SIGTERM
			testserver.Eventually(t, "the signal is taken", func() bool { return len(signals) == 0 })
		}
	}
	outcome, err := p.runOnce(cfg, lock.NewCandidate(cfg.Lock))
	if err == nil || !strings.Contains(err.Error(), "terminating connection") || outcome.Asked != BySignal {
		t.Errorf("asked by %v; %v", outcome.Asked, err)
	}
}

// TestLostAtRelease: if the lock can't be released, the hook for a loss is called, and not the one
// for a release.
func TestLostAtRelease(t *testing.T) {
	server := testserver.Start(t, nil)
	p, signals := signalsTo(t)
	cfg := Config{Lock: lockOn(t, server), Hooks: Hooks{Lost: "echo $PGLEAD_EVENT: $PGLEAD_REASON >>$FILE", Released: "echo $PGLEAD_EVENT >>$FILE"}}
	file := filepath.Join(t.TempDir(), "said")
	cfg.Env = []string{"PATH=" + os.Getenv("PATH"), "FILE=" + file}
	held, err := lock.NewCandidate(cfg.Lock).Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	terminateAll(t, server)
	r := &run{process: p, cfg: cfg, log: cfg.Lock.Log, held: held, signals: signals}
	r.afterRelease(held.Release(t.Context()))
	p.awaitHooks(cfg.Lock.Observer)
	if said, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(said), "lost: ") || !strings.Contains(string(said), "57P01") || strings.Count(string(said), "\n") != 1 {
		t.Errorf("the hooks say %q, %v", said, err)
	}
}

// TestSignalBeforeStart: a signal comes when the lock is there, and before the command starts. It
// is not started, and the lock is free.
func TestSignalBeforeStart(t *testing.T) {
	server := testserver.Start(t, nil)
	p, signals := signalsTo(t)
	cfg := Config{Lock: lockOn(t, server), Path: "/bin/true", Command: []string{"true"}}
	cfg.CommandObserver.Started = func() { t.Error("the command was started") }
	cfg.Lock.Log = slog.New(atEvent{slog.DiscardHandler, "acquired", func() {
		signals <- unix.SIGTERM
		testserver.Eventually(t, "the signal is taken", func() bool { return len(signals) == 0 })
	}})
	outcome, err := p.runOnce(cfg, lock.NewCandidate(cfg.Lock))
	if !errors.As(err, new(*InterruptedError)) || outcome.Asked != BySignal {
		t.Errorf("asked by %v; %v", outcome.Asked, err)
	}
	if held := testserver.Query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0]; held != "0" {
		t.Errorf("%s locks are held", held)
	}
}
