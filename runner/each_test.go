package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

func id(n int64) lockkey.ID { return lockkey.ID{Number: n} }

// TestEndsAreForgotten: the latest ends are remembered, and no more than twice as many.
func TestEndsAreForgotten(t *testing.T) {
	var e itemEnds
	e.add(id(-1), itemEnd{ok: true})
	e.add(id(-1), itemEnd{}) // the latest end counts, and takes no room
	for n := range int64(mostEnds) {
		e.add(id(n), itemEnd{ok: true})
	}
	if end, ended := e.of(id(-1)); end.ok || !ended {
		t.Errorf("%+v, ended %v", end, ended)
	}
	for n := range int64(mostEnds) {
		e.add(id(mostEnds+n), itemEnd{ok: true})
	}
	if _, ended := e.of(id(-1)); ended {
		t.Error("the oldest is remembered")
	}
	if end, ended := e.of(id(mostEnds)); !end.ok || !ended || len(e.latest)+len(e.before) > 2*mostEnds {
		t.Errorf("%+v, ended %v; %d are remembered", end, ended, len(e.latest)+len(e.before))
	}
}

// TestHearOfOwn: that an item has run here stays known when a later end elsewhere is heard of.
func TestHearOfOwn(t *testing.T) {
	e := &each{}
	e.ends.add(id(7), itemEnd{here: true})
	for _, ok := range []bool{false, true} {
		e.hear(id(7), ok)
		if end, ended := e.ends.of(id(7)); end != (itemEnd{ok: ok, here: true}) || !ended {
			t.Errorf("ok %v: %+v, ended %v", ok, end, ended)
		}
	}
}

// workerOn is a worker that has the lock of an item, under which no command runs yet.
func workerOn(t *testing.T, locking lock.Config, parallel int) (*worker, *activeItem) {
	t.Helper()
	item := "1"
	e := &each{
		process: &process{}, warned: map[[2]string]bool{}, active: activeItems{byLock: map[lockkey.ID]*activeItem{}},
		cfg: EachConfig{
			Config: Config{Lock: locking}, Parallel: parallel, Progress: func(Tally) {},
			Task: func(item string) Task { return Task{Key: item, ID: id(1), Command: []string{"true"}} },
		},
	}
	list, err := e.openList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(list.Close)
	if !locking.Session.Transaction {
		e.common = list
	}
	w := &worker{each: e, list: list, pushedBack: &activeItem{item: item}}
	it, err := w.pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if tried := w.exchange(it); tried != nil || !it.attempt.Granted() {
		t.Fatalf("granted %t, %v", it.attempt.Granted(), tried)
	}
	return w, it
}

// TestRunMeanwhile: an item that another worker on the list has run between this worker's look and
// the grant is skipped, and its lock is free.
func TestRunMeanwhile(t *testing.T) {
	server := testserver.Start(t, nil)
	w, it := workerOn(t, lockOn(t, server), 1)
	w.hear(it.name(), true)
	if settled, err := w.settleOrSkip(t.Context(), it, nil); settled || err != nil || w.tally.Done != 1 {
		t.Errorf("settled %t, %v; %+v", settled, err, w.tally)
	}
	if free := testserver.Query(t, server, "SELECT pg_try_advisory_xact_lock(1)")[0]; free != "t" {
		t.Error("its lock is still held")
	}
}

// TestFailedElsewhere: an item that has failed elsewhere is left out or, with --wait, put off until
// the list comes back to it.
func TestFailedElsewhere(t *testing.T) {
	server := testserver.Start(t, nil)
	for _, tt := range []struct {
		wait      time.Duration
		returning bool
		skipped   bool
		want      Tally
	}{
		{0, false, true, Tally{Done: 1}},
		{lock.Forever, false, true, Tally{Held: 1}},
		{lock.Forever, true, false, Tally{}},
	} {
		locking := lockOn(t, server)
		locking.Wait = tt.wait
		w, it := workerOn(t, locking, 1)
		w.returning = tt.returning
		w.hear(it.name(), false)
		skipped, err := w.skipIfRun(t.Context(), it)
		if skipped != tt.skipped || err != nil || w.tally != tt.want || len(w.comeBack) != tt.want.Held {
			t.Errorf("%+v: skipped %v, %v; %+v, %d to come back to", tt, skipped, err, w.tally, len(w.comeBack))
		}
		w.giveBack(it)
	}
}

// levels are the levels of what was logged.
type levels struct {
	slog.Handler
	list *[]slog.Level
}

func (l levels) Enabled(context.Context, slog.Level) bool { return true }
func (l levels) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l levels) Handle(_ context.Context, r slog.Record) error {
	*l.list = append(*l.list, r.Level)
	return nil
}

// TestComesBackAfterObstacle: while there is time, a worker tries an item again after an obstacle
// that may pass, and warns of it once. The list ends with any other error, and with that of a
// session that is lost.
func TestComesBackAfterObstacle(t *testing.T) {
	server := testserver.Start(t, nil)
	locking, logged := lockOn(t, server), []slog.Level{}
	locking.Log = slog.New(levels{slog.DiscardHandler, &logged})
	w, it := workerOn(t, locking, 1)
	for _, w.ahead = range []<-chan struct{}{make(chan struct{}), nil} {
		if err := w.skipIfBarred(t.Context(), it, session.Errorf(session.Unreachable, "", "no memory")); err != nil {
			t.Error(err)
		}
		if fetchesAhead := w.ahead != nil; fetchesAhead != (w.backedOff == 0) {
			t.Errorf("ahead %t: it pauses for %v", fetchesAhead, w.backedOff)
		}
	}
	if !slices.Equal(logged, []slog.Level{slog.LevelWarn, slog.LevelInfo}) || w.pushedBack != it || !it.contested {
		t.Errorf("logged %v; %+v is next", logged, w.pushedBack)
	}
	if err := w.skipIfBarred(t.Context(), it, session.Errorf(session.Denied, "", "not yours")); err == nil || err.Error() != "not yours" {
		t.Errorf("the list goes on after %v", err)
	}
	terminateAll(t, server)
	<-w.list.Session.Done()
	if err := w.skipIfBarred(t.Context(), it, w.list.Session.Err()); !errors.As(err, new(*session.LostError)) {
		t.Errorf("the list goes on without its session: %v", err)
	}
	if len(logged) != 2 || w.tally.Hindered != 0 {
		t.Errorf("logged %v; %+v", logged, w.tally)
	}
}

// TestSharedConnection: the guards of commands that share a connection know of each other. For how
// long a guard whose pglead is stopped keeps the connection depends on who can see the silence.
func TestSharedConnection(t *testing.T) {
	server := testserver.Start(t, nil)
	for _, tt := range []struct {
		parallel    int
		transaction bool
		shares      bool
		linger      time.Duration
	}{
		{1, false, false, leasetime.ForKill(6*time.Second) + silencePatience},
		{2, false, true, 6 * time.Second},
		{2, true, false, 0},
	} {
		locking := lockOn(t, server)
		locking.Session.Transaction = tt.transaction
		w, it := workerOn(t, locking, tt.parallel)
		if settled, err := w.settleOrSkip(t.Context(), it, nil); !settled {
			t.Fatal(err)
		}
		if spec := it.run.commandSpec(); spec.SharesSocket != tt.shares || spec.SocketLinger != tt.linger {
			t.Errorf("%+v: shares %t, for %v", tt, spec.SharesSocket, spec.SocketLinger)
		}
		w.giveBack(it)
	}
}

// TestActiveItems: an item is at work once, and a signal reaches all commands.
func TestActiveItems(t *testing.T) {
	active := activeItems{byLock: map[lockkey.ID]*activeItem{}}
	enter := func(n int64) *activeItem {
		it := &activeItem{Task: Task{ID: id(n)}, signals: make(chan os.Signal, 1)}
		if active.enter(it) != nil || active.enter(it) != it {
			t.Errorf("%d is not at work once", n)
		}
		return it
	}
	a, b := enter(1), enter(2)
	active.signal(unix.SIGUSR1)
	active.signal(unix.SIGUSR2) // there is no room for it, and nothing waits
	if sig := <-a.signals; sig != unix.SIGUSR1 || len(a.signals) != 0 || len(b.signals) != 1 {
		t.Errorf("signal %v", sig)
	}
	active.leave(a)
	enter(1)
}

// TestDelayedAhead: an item that was fetched ahead, and whose start has to be delayed, is given
// back, and tried again after the command that runs.
func TestDelayedAhead(t *testing.T) {
	server := testserver.Start(t, nil)
	locking := lockOn(t, server)
	locking.PrivateServer = false // the server came up less than a lock-delay ago
	w, it := workerOn(t, locking, 1)
	w.ahead = make(chan struct{})
	if settled, err := w.settleOrSkip(t.Context(), it, nil); settled || err != nil || w.pushedBack != it {
		t.Errorf("settled %t, %v; %v is pushed back", settled, err, w.pushedBack)
	}
	if free := testserver.Query(t, server, "SELECT pg_try_advisory_xact_lock(1)")[0]; free != "t" {
		t.Error("its lock is still held")
	}
}

// TestAheadUntilEnd: a worker that fetches ahead, and finds nothing but items that others have,
// tries no more of them once the command that runs has ended: that command's lock has to be
// released.
func TestAheadUntilEnd(t *testing.T) {
	server := testserver.Start(t, nil)
	other, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock(n) FROM generate_series(2, 1000) AS n").ReadAll(); err != nil {
		t.Fatal(err)
	}
	w, _ := workerOn(t, lockOn(t, server), 1)
	w.cfg.Task = func(item string) Task {
		id, _ := lockkey.Parse(item)
		return Task{Key: item, ID: id}
	}
	queue, ended := make(chan string, 1000), make(chan struct{})
	for n := range cap(queue) {
		queue <- strconv.Itoa(n + 2)
	}
	w.queue, w.ahead = queue, ended
	w.cfg.Progress = func(n Tally) {
		if n.Held == 3 {
			close(ended)
		}
	}
	if next, err := w.fetch(t.Context()); next != nil || err != nil || w.tally.Held != 3 || len(queue) != cap(queue)-3 {
		t.Errorf("fetched %v, %v; %+v, and %d are left", next, err, w.tally, len(queue))
	}
}

// TestEachDelayed: a brief command's lock is free before the list waits until the last command of
// the next item is dead.
func TestEachDelayed(t *testing.T) {
	server := testserver.Start(t, nil)
	free := func(id string) bool {
		return testserver.Query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND objid = "+id)[0] == "0"
	}
	other, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	// Another program has all locks, and frees them without a word.
	if _, err := other.Exec(t.Context(), "SELECT pg_advisory_lock(1), pg_advisory_lock(2), pg_advisory_lock(3)").ReadAll(); err != nil {
		t.Fatal(err)
	}
	cfg := EachConfig{
		Config: Config{Lock: lockOn(t, server), Path: "/bin/true"}, Items: slices.Values([]string{"1", "2", "3"}), Parallel: 1,
		Task: func(item string) Task {
			id, _ := lockkey.Parse(item)
			return Task{Key: item, ID: id, Command: []string{"true"}}
		},
		Progress: func(n Tally) {
			if n.Held == 3 {
				_ = other.Close(context.Background())
			}
		},
	}
	cfg.Lock.LockDelay = time.Second
	delays := 0
	cfg.Lock.Observer.Delayed = func(until time.Time) {
		if until.IsZero() {
			return
		}
		if delays++; delays > 1 && !free(strconv.Itoa(delays-1)) {
			t.Errorf("at the delay of item %d, the lock of item %d is held", delays, delays-1)
		}
	}
	if tally, err := Each(cfg); err != nil || tally.Ran != 3 || delays != 3 {
		t.Errorf("%+v, %d delays; %v", tally, delays, err)
	}
}

// TestEachLaterPass: other runs have all items in the first pass, and end cleanly. In the second
// each item starts at once, also after a command that takes longer than the brief one before it.
func TestEachLaterPass(t *testing.T) {
	server := testserver.Start(t, nil)
	locking, items := lockOn(t, server), []string{"1", "2", "3"}
	locking.LockDelay = time.Second
	var others []*lock.Held
	for n := range items {
		other := locking
		other.Claim.IDs = []lockkey.ID{id(int64(n + 1))}
		held, err := lock.NewCandidate(other).Acquire(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		others = append(others, held)
	}
	cfg := EachConfig{
		Config: Config{Lock: locking, Path: "/bin/sleep"}, Items: slices.Values(items), Parallel: 1, Progress: func(Tally) {},
		Task: func(item string) Task {
			id, _ := lockkey.Parse(item)
			return Task{Key: item, ID: id, Command: []string{"sleep", map[string]string{"1": "0", "2": "0.2", "3": "0"}[item]}}
		},
	}
	cfg.Lock.Observer.Delayed = func(time.Time) { t.Error("an item's start is delayed") }
	ended := make(chan error, 1)
	go func() {
		tally, err := Each(cfg)
		if err == nil && tally != (Tally{Ran: 3}) {
			err = fmt.Errorf("%+v", tally)
		}
		ended <- err
	}()
	testserver.Eventually(t, "the list listens for all of them", func() bool {
		return testserver.Query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2")[0] == "3"
	})
	for _, held := range others {
		if err := held.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
