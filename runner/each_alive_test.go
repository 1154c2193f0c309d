package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
)

// played is an observer that remembers until when a list is not stuck, and until when an item's
// start is delayed. When another item's work has called it since the delay began, it makes a file.
type played struct {
	file string

	mu             sync.Mutex
	alive, delayed time.Time
	err            error
}

func (p *played) Alive(within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alive = time.Now().Add(within)
	if !p.delayed.IsZero() && p.err == nil {
		p.err = os.WriteFile(p.file, nil, 0o600)
	}
}

func (p *played) Delayed(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !until.IsZero() {
		p.delayed = until
	}
}

// list is a list of items whose commands wait for the file, and what Each returns. reached is
// closed when so many run, and so many have run.
func (p *played) list(locking lock.Config, items []string, running, ran int) (reached <-chan struct{}, ended <-chan error) {
	locking.Wait = 0
	locking.Observer.Alive, locking.Observer.Delayed = p.Alive, p.Delayed
	there, result := make(chan struct{}), make(chan error, 1)
	close := sync.OnceFunc(func() { close(there) })
	cfg := EachConfig{
		Config: Config{Lock: locking, Path: "/bin/sh"}, Items: slices.Values(items), Parallel: len(items),
		Task: func(item string) Task {
			id, _ := lockkey.Parse(item)
			return Task{Key: item, ID: id, Command: []string{"sh", "-c", "until test -e " + p.file + "; do sleep 0.01; done"}}
		},
		Progress: func(n Tally) {
			if n.Running == running && n.Ran == ran {
				close()
			}
		},
	}
	go func() {
		_, err := Each(cfg)
		result <- err
	}()
	return there, result
}

func terminateAll(t *testing.T, server *localpg.Server) {
	t.Helper()
	testserver.Query(t, server, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%'")
}

// TestEachIsAlive: while one worker waits, for as long as the run before calls for, another's
// command ends, and no item is left for it. The list has said that it is not stuck for as long as
// the first waits.
func TestEachIsAlive(t *testing.T) {
	server := testserver.Start(t, nil)
	testserver.Query(t, server, ledger.InstallSQL(ledger.Plan{Keep: ledger.Keep}))
	locking := lockOn(t, server)
	locking.Ledger.Mode, locking.LockDelay = ledger.Auto, time.Second
	before := locking
	before.Session.Lease, before.Claim.Keys = time.Hour, []string{"1"}
	held, err := lock.NewCandidate(before).Acquire(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	terminateAll(t, server)

	p := &played{file: filepath.Join(t.TempDir(), "called")}
	reached, ended := p.list(locking, []string{"1", "2"}, 0, 1)
	select {
	case <-reached:
	case err := <-ended:
		t.Fatal(err)
	}
	p.mu.Lock()
	if missing := p.delayed.Sub(p.alive); missing > 0 || p.err != nil {
		t.Errorf("the list says that it is not stuck until %v before the end of the delay; %v", missing, p.err)
	}
	p.mu.Unlock()
	terminateAll(t, server)
	if err := <-ended; err == nil {
		t.Error("the first item's worker does not wait")
	}
}

// TestWorkersAreAlive: what one worker says of its item cuts short neither what another one has
// said of another item nor what a third one has said while it opens a session.
func TestWorkersAreAlive(t *testing.T) {
	for name, ofItem := range map[string]bool{"another item": true, "a session": false} {
		t.Run(name, func(t *testing.T) {
			item, other := &activeItem{}, &activeItem{}
			active := activeItems{byLock: map[lockkey.ID]*activeItem{id(1): item, id(2): other}}
			first := other
			if !ofItem {
				first = nil
			}
			var last time.Duration
			alive := func(within time.Duration) { last = within }
			active.sayAlive(first, 2*time.Hour, alive)
			if active.sayAlive(nil, time.Second, alive); last < time.Hour {
				t.Errorf("the list is not stuck for %v, want two hours", last)
			}
			active.sayAlive(item, time.Second, alive)
			if last < time.Hour {
				t.Errorf("the list is not stuck for %v, want two hours", last)
			}
			active.sayAlive(item, 3*time.Hour, alive)
			if last < 2*time.Hour+time.Minute {
				t.Errorf("the list is not stuck for %v, want three hours", last)
			}
		})
	}
}

// TestEachIsAliveAfterLoss: a list that has lost its session tries to tell others of it for a
// lock-delay, and says so.
func TestEachIsAliveAfterLoss(t *testing.T) {
	server := testserver.Start(t, nil)
	locking := lockOn(t, server)
	p := &played{file: filepath.Join(t.TempDir(), "never")}
	reached, ended := p.list(locking, []string{"1"}, 1, 0)
	select {
	case <-reached:
	case err := <-ended:
		t.Fatal(err)
	}
	began := time.Now()
	terminateAll(t, server)
	if err := <-ended; err == nil {
		t.Error("the loss is no error")
	}
	if least := began.Add(locking.LockDelay + locking.AttemptMost()); p.alive.Before(least) {
		t.Errorf("it says that it is not stuck until %v before the end of a lock-delay", least.Sub(p.alive))
	}
}

// TestEachEndsWhileItReports: a signal ends the report of a loss, though the database is away, and
// the lock-delay, for which the report would be tried, is an hour.
func TestEachEndsWhileItReports(t *testing.T) {
	server := testserver.Start(t, nil)
	p, signals := signalsTo(t)
	started, reports := make(chan struct{}), make(chan struct{}, 100)
	cfg := EachConfig{
		Config: Config{Lock: lockOn(t, server), Path: "/bin/sleep", CommandObserver: CommandObserver{Started: func() { close(started) }}},
		Items:  slices.Values([]string{"1"}), Parallel: 1, Progress: func(Tally) {},
		Task: func(item string) Task {
			id, _ := lockkey.Parse(item)
			return Task{Key: item, ID: id, Command: []string{"sleep", "1000"}}
		},
	}
	cfg.Lock.Wait = 0
	cfg.Lock.Observer.Away = func(err error) {
		if err != nil {
			reports <- struct{}{}
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := p.workOn(cfg)
		ended <- err
	}()
	<-started
	if err := server.Stop(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	<-reports // ReportLost has begun
	<-reports // and its first attempt has failed
	signals <- unix.SIGTERM
	select {
	case err := <-ended:
		if !errors.As(err, new(*LockLostError)) {
			t.Errorf("want the loss: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("it goes on to report the loss")
	}
}

// TestEachReportsAfterSignal: a signal came before the loss of a lock. Those who wait are told that
// its command is dead all the same.
func TestEachReportsAfterSignal(t *testing.T) {
	server := testserver.Start(t, nil)
	p, signals := signalsTo(t)
	heard := make(chan string, 10)
	database, err := pgconn.ParseConfig(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	database.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { heard <- n.Payload }
	listener, err := pgconn.ConnectConfig(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listener.Exec(t.Context(), `LISTEN "pglead.1.1"`).ReadAll(); err != nil {
		t.Fatal(err)
	}
	interrupted, ready := make(chan struct{}), filepath.Join(t.TempDir(), "ready")
	cfg := EachConfig{
		Config: Config{Lock: lockOn(t, server), Path: "/bin/sh", CommandObserver: CommandObserver{Interrupted: func() { close(interrupted) }}},
		Items:  slices.Values([]string{"1"}), Parallel: 1, Progress: func(Tally) {},
		Task: func(item string) Task {
			id, _ := lockkey.Parse(item)
			return Task{Key: item, ID: id, Command: []string{"sh", "-c", "trap '' TERM; touch " + ready + "; while :; do sleep 0.1; done"}}
		},
	}
	go func() {
		testserver.Eventually(t, "the command is deaf", func() bool {
			_, err := os.Stat(ready)
			return err == nil
		})
		signals <- unix.SIGTERM
		<-interrupted
		testserver.Query(t, server, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1")
	}()
	if _, err := p.workOn(cfg); !errors.As(err, new(*InterruptedError)) && !errors.As(err, new(*LockLostError)) {
		t.Errorf("the list ends with %v", err)
	}
	last := ""
	for !strings.HasPrefix(last, "dead ") {
		wait, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := listener.WaitForNotification(wait)
		cancel()
		if err != nil {
			t.Fatalf("nobody says that the command is dead, but %q: %v", last, err)
		}
		last = <-heard
	}
}
