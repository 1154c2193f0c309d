package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/leasetime"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// remembering starts a server with a ledger that an ordinary owner has installed. It also returns
// the DSN of a role that is granted the ledger.
func remembering(t *testing.T, settings map[string]string) (server *localpg.Server, dsn string) {
	t.Helper()
	server = start(t, settings)
	query(t, server, "CREATE ROLE boss LOGIN; CREATE ROLE cron LOGIN; CREATE ROLE other; ALTER DATABASE postgres OWNER TO boss; GRANT pg_signal_backend TO boss")
	owner := plain(t, as(t, server, "boss"))
	run(t, owner, ledger.InstallSQL(ledger.Plan{Keep: ledger.Keep}))
	run(t, owner, "GRANT USAGE ON SCHEMA pglead TO cron")
	return server, as(t, server, "cron")
}

func ledgered(cfg lock.Config) lock.Config {
	cfg.Ledger, cfg.Claim.Keys = ledger.Use{Mode: ledger.Auto}, []string{"nightly"}
	return cfg
}

func ended(h *lock.Held, outcome ledger.Outcome) *lock.Held {
	h.SetEnd(ledger.End{Outcome: outcome, At: time.Now()})
	return h
}

func rows(t *testing.T, server *localpg.Server) string {
	t.Helper()
	return strings.Join(query(t, server, "SELECT key, outcome, ended IS NULL, cut IS NULL, reader <> 0 FROM pglead.lock ORDER BY number, reader"), " ")
}

// TestLedgerFirstTry: first tries come after all kinds of ends.
func TestLedgerFirstTry(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	for range 2 {
		release(t, ended(acquire(t, cfg), ledger.OK))
	}
	if got := rows(t, server); got != "nightly ok f t f" {
		t.Errorf("the row: %s", got)
	}
	held := acquire(t, cfg)
	tear(t, server, held)
	late := contend(t, cfg)
	eventually(t, "the newcomer waits", func() bool { return slices.Contains(late.said(), "delayed") })
	if got := rows(t, server); got != "nightly  t f f" {
		t.Errorf("the row of a run that is cut off: %s", got)
	}
	lock.ReportLost(t.Context(), held)
	next := late.held(t)
	if next.Token <= held.Token {
		t.Errorf("token %d after %d", next.Token, held.Token)
	}
	if got := query(t, server, fmt.Sprintf("SELECT outcome FROM pglead.run WHERE token = %d", held.Token)); !slices.Equal(got, []string{"lost"}) {
		t.Errorf("the survivor's end: %q", got)
	}
	release(t, ended(next, ledger.OK))
	unlucky := ended(acquire(t, cfg), ledger.OK)
	tear(t, server, unlucky)
	if err := unlucky.Release(t.Context()); err == nil {
		t.Error("a lock that was torn away is released")
	}
	lock.ReportEnded(t.Context(), unlucky)
	if got := rows(t, server); got != "nightly ok f t f" {
		t.Errorf("the row of a run whose session was lost after its command: %s", got)
	}
	next = acquire(t, cfg)
	tear(t, server, next)
	short := cfg
	short.LockDelay = time.Second
	began := time.Now()
	last := acquire(t, short)
	// The lost run's own settings ask for more: two thirds of its lease.
	if took := time.Since(began); took < leasetime.DeadAfter(lease, 0) {
		t.Errorf("started %v after an end that nobody saw", took)
	}
	release(t, last)
	if got := rows(t, server); got != "nightly stopped f t f" {
		t.Errorf("the row of a run whose command never began: %s", got)
	}
	short.LockDelay = 0
	tear(t, server, acquire(t, short))
	release(t, acquire(t, short))
}

// TestLedgerAlive: a start that waits for another run says for how long it is not stuck: as long as
// that run's own lease requires, which may be longer than this one's.
func TestLedgerAlive(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	tear(t, server, acquire(t, leased(cfg, time.Hour)))
	cfg.LockDelay = time.Second
	var alive time.Time
	delayed := make(chan time.Duration, 1)
	cfg.Observer.Alive = func(within time.Duration) { alive = time.Now().Add(within) }
	cfg.Observer.Delayed = func(until time.Time) {
		if !until.IsZero() {
			delayed <- alive.Sub(until)
		}
	}
	waits := contend(t, cfg)
	select {
	case beyond := <-delayed:
		if beyond <= 0 {
			t.Errorf("it says that it is not stuck until %v before the end of the delay", -beyond)
		}
	case <-waits.done:
		t.Errorf("it doesn't wait: %v", waits.err)
	}
}

// TestLedgerUnreadable: a role that may not read the ledger's tables waits for as long as an open run
// may be alive, and then starts.
func TestLedgerUnreadable(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	cfg.LockDelay = time.Second
	query(t, server, "REVOKE SELECT ON pglead.lock FROM PUBLIC")
	tear(t, server, acquire(t, cfg))
	began := time.Now()
	release(t, acquire(t, cfg))
	if took := time.Since(began); took < leasetime.DeadAfter(lease, 0) {
		t.Errorf("started %v after an end that nobody saw", took)
	}
}

// TestLedgerLine: the same for waiters, which know more.
func TestLedgerLine(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	first := acquire(t, cfg)
	second := contend(t, cfg)
	inLine(t, server, id(7), 1)
	release(t, ended(first, ledger.Failed))
	held := second.held(t)
	third := contend(t, cfg)
	inLine(t, server, id(7), 1)
	tear(t, server, held)
	eventually(t, "the waiter is delayed", func() bool { return slices.Contains(third.said(), "delayed") })
	lock.ReportLost(t.Context(), held)
	release(t, third.held(t))
	unstarted := ended(acquire(t, cfg), ledger.Stopped)
	tear(t, server, unstarted)
	lock.ReportLost(t.Context(), unstarted)
	if got := query(t, server, "SELECT outcome FROM pglead.run ORDER BY token"); !slices.Equal(got, []string{"failed", "lost", "stopped", "stopped"}) {
		t.Errorf("history: %q", got)
	}
}

// TestLedgerCoverage: a run that has started by the ledger's word alone can't say at its end that
// commands are dead of which the ledger doesn't know.
func TestLedgerCoverage(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	release(t, acquire(t, cfg))
	parsed, err := pgconn.ParseConfig(server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	parsed.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { said = append(said, n.Payload) }
	ear, err := pgconn.ConnectConfig(t.Context(), parsed)
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Close(context.Background())
	run(t, ear, `LISTEN "pglead.1.7"`)
	returning := lock.NewBid(open(t, cfg), cfg, true) // it has heard nothing
	if !try(t, returning) {
		t.Fatal("the lock is not free")
	}
	held := settle(t, returning)
	contend(t, cfg)
	inLine(t, server, id(7), 1)
	release(t, ended(held, ledger.OK))
	eventually(t, "its end is heard", func() bool {
		run(t, ear, "SELECT 1")
		return slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, fmt.Sprintf("clean %d ", held.Token)) })
	})
	if slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, " all") }) {
		t.Errorf("said %q", said)
	}
}

// TestLedgerRestart: the server restarts, and a waiter loses its session, and with it all that it
// has heard.
func TestLedgerRestart(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	cfg.PrivateServer = false // the server will be younger than the lock-delay
	query(t, server, "INSERT INTO pglead.lock (number, sub, system, token, started, ended) SELECT 7, 1, system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint << 48, now(), now() FROM pg_control_system()")
	held := acquire(t, cfg)
	waiter := contend(t, cfg)
	inLine(t, server, id(7), 1)
	if err := server.Stop(2); err != nil {
		t.Fatal(err)
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	lock.ReportLost(t.Context(), held)
	release(t, waiter.held(t))
}

func TestLedgerModes(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, map[string]string{"wal_level": "replica"})
	for name, claim := range map[string]lock.Claim{"several": exclusive(7, 8), "slots": slots(20, 2), "shared": shared(30), "pair": {IDs: []lockkey.ID{pairID(-1, -2)}}} {
		t.Run(name, func(t *testing.T) {
			cfg := ledgered(config(t, dsn, claim))
			for range 2 {
				release(t, ended(acquire(t, cfg), ledger.OK))
			}
			held := acquire(t, cfg)
			tear(t, server, held)
			if name == "slots" || name == "shared" {
				return // the next run takes another slot, or reads beside this one
			}
			late := contend(t, cfg)
			eventually(t, "the newcomer waits", func() bool { return slices.Contains(late.said(), "delayed") })
			lock.ReportLost(t.Context(), held)
			release(t, late.held(t))
		})
	}
	writer := contend(t, ledgered(config(t, dsn, exclusive(30))))
	eventually(t, "a writer after a reader that was lost waits", func() bool { return slices.Contains(writer.said(), "delayed") })
	if got := query(t, server, "SELECT count(*) FROM pglead.lock WHERE started IS NOT NULL AND ended IS NULL"); got[0] != "2" {
		t.Errorf("%s open, want the lost slot and the lost reader", got)
	}
}

func TestLedgerTransaction(t *testing.T) {
	t.Parallel()
	server, _ := remembering(t, nil)
	cfg := ledgered(config(t, pooled(t, server, "cron", "transaction", 5), exclusive(7)))
	cfg.Session.Transaction = true
	for range 2 {
		release(t, ended(acquire(t, cfg), ledger.OK))
	}
	held := acquire(t, cfg)
	tear(t, server, held)
	late := contend(t, cfg)
	eventually(t, "the newcomer waits", func() bool { return slices.Contains(late.said(), "delayed") })
	lock.ReportLost(t.Context(), held)
	release(t, late.held(t))
	if got := query(t, server, "SELECT outcome FROM pglead.run ORDER BY token"); !slices.Equal(got, []string{"ok", "ok", "lost", "stopped"}) {
		t.Errorf("history: %q", got)
	}
}

func TestLedgerPause(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	release(t, acquire(t, cfg))
	query(t, server, "SELECT pglead.pause_1(7, 1::smallint, 'nightly', 'infinity', 'ann', 'disk swap')")
	once := cfg
	once.Wait = 0
	_, err := lock.NewCandidate(once).Acquire(t.Context(), nil)
	var paused *ledger.PausedError
	if !errors.As(err, &paused) || paused.Error() != "paused (ann: disk swap)" {
		t.Errorf("a first try: %v", err)
	}
	// They come one after the other: the first has the lock for a moment while it finds out about
	// the pause. If the second came just then, it could see that, and miss the announcement that
	// the lock was given back.
	contenders := make([]*contender, 2)
	for i := range contenders {
		c := contend(t, cfg)
		contenders[i] = c
		eventually(t, "it sits the pause out", func() bool { return slices.Contains(c.said(), "paused") })
	}
	first, second := contenders[0], contenders[1]
	if advisoryLocks(t, server) != "0" {
		t.Error("who sits a pause out holds locks")
	}
	query(t, server, "SELECT pglead.resume_1(7, 1::smallint)")
	select {
	case <-first.done:
		release(t, first.held(t))
		release(t, second.held(t))
	case <-second.done:
		release(t, second.held(t))
		release(t, first.held(t))
	case <-time.After(longest):
		t.Error("nobody starts after a pause")
	}
}

// TestLedgerPauseFirst: a key is paused before its first run. The ledger knows nothing of an
// earlier run, and a run that has waited for the end of the pause starts like one that comes just
// now.
func TestLedgerPauseFirst(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	query(t, server, "SELECT pglead.pause_1(7, 1::smallint, 'nightly', 'infinity', 'ann', NULL)")
	waiter := contend(t, ledgered(config(t, dsn, exclusive(7))))
	eventually(t, "it sits the pause out", func() bool { return slices.Contains(waiter.said(), "paused") })
	query(t, server, "SELECT pglead.resume_1(7, 1::smallint)")
	release(t, waiter.held(t))
	if slices.Contains(waiter.said(), "delayed") {
		t.Error("waited for a run that nobody knows of")
	}
}

func TestLedgerTick(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(7)))
	at := func(hours int) lock.Config {
		cfg.Ledger.Tick = ledger.TickOf(time.Hour, func() time.Time { return time.Now().Add(time.Duration(hours) * time.Hour) })
		return cfg
	}
	release(t, ended(acquire(t, at(0)), ledger.Failed))
	held := acquire(t, at(0))
	waiter := contend(t, at(0))
	inLine(t, server, id(7), 1)
	release(t, ended(held, ledger.OK))
	<-waiter.done
	if !errors.As(waiter.err, new(*ledger.DoneError)) {
		t.Errorf("who waited for one that succeeds: %v", waiter.err)
	}
	_, err := lock.NewCandidate(at(0)).Acquire(t.Context(), nil)
	if !errors.As(err, new(*ledger.DoneError)) {
		t.Errorf("after a success: %v", err)
	}
	_, err = lock.NewCandidate(at(1)).Acquire(t.Context(), nil)
	if kindOf(err) != session.Unsafe || !strings.Contains(err.Error(), "ahead of") {
		t.Errorf("with a clock that is an hour ahead: %v", err)
	}
	none := at(0)
	none.Session.Database = config(t, server.DSN("template1"), exclusive(7)).Session.Database
	if _, err := lock.NewCandidate(none).Acquire(t.Context(), nil); kindOf(err) != session.Denied {
		t.Errorf("without a ledger: %v", err)
	}
}

// TestLedgerKnowsOneOfTwo: a writer has waited for a reader, whose end the ledger has, and nobody else
// has had its other lock, of which the ledger has nothing. Together this is enough to start at once.
func TestLedgerKnowsOneOfTwo(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	reader := ledgered(config(t, dsn, shared(8)))
	reading := acquire(t, reader)
	both := ledgered(config(t, dsn, exclusive(7, 8)))
	both.Claim.Keys = []string{"fresh", "nightly"}
	writer := contend(t, both)
	inLine(t, server, id(8), 1)
	release(t, ended(reading, ledger.OK))
	held := writer.held(t)
	if delayed(writer) {
		t.Errorf("it waits: %v", writer.said())
	}
	release(t, ended(held, ledger.OK))

	// A run of the other lock that the ledger knows to be open is waited for all the same.
	tear(t, server, acquire(t, ledgered(config(t, dsn, exclusive(7)))))
	reading = acquire(t, reader)
	writer = contend(t, both)
	inLine(t, server, id(8), 1)
	release(t, ended(reading, ledger.OK))
	eventually(t, "the writer waits", func() bool { return slices.Contains(writer.said(), "delayed") })
}
