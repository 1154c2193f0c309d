package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// index says where to look for a test, by the beginnings of the files' names. Who may start, by
// what was heard, is tested in package evidence; when a waiter tries and looks, in package crowd.
const index = `
claim_several, claim_slots, claim_shared, claim_conflicts, claim_prepared               what is claimed
candidate_reconnect, candidate_alive                                                    coming back after an outage
line, line_marks, line_arrival, line_room, line_dormant, line_watch, line_fairness      the line, and its order
takeover, takeover_longer_lease, line_silence, line_silence_enough, line_clock_linux    taking over, by kind of end
token, settle_interrupted, warmup                                                       the start
held_release, announce_rejected, stepdown, stepdown_asker                               the end
transaction, transaction_trips, quorum, quorum_unconfirmed                               other ways of locking
list, list_exchange, list_ends, list_deadlines                                          a list
ledger, ledger_end, ledger_faults, ledger_gone, ledger_disk_linux, ledger_pause         the ledger
ledger_close_dead, ledger_restored                                                      the same
right_to_end                                                                            roles without rights
canceled, nonsense_answers                                                              what servers may answer
setup, setup_relay, setup_slowrelay, leak, export                                       for all tests
`

func TestIndex(t *testing.T) { testserver.Index(t, index, ".") }

var start, query, pooled, eventually = testserver.Start, testserver.Query, testserver.Pooled, testserver.Eventually

// as makes a role at the server, and returns the DSN for it.
func as(t *testing.T, server *localpg.Server, role string) (dsn string) {
	t.Helper()
	if query(t, server, "SELECT count(*) FROM pg_roles WHERE rolname = '"+role+"'")[0] == "0" {
		query(t, server, "CREATE ROLE "+role+" LOGIN")
	}
	return strings.Replace(server.DSN("postgres"), "user="+localpg.Superuser, "user="+role, 1)
}

// The lease is short for a person and long for a slow machine. The lock-delay is longer than
// anything else here takes, so that a run that waits it out isn't just slow.
const (
	lease     = 6 * time.Second
	longDelay = time.Hour
)

func config(t *testing.T, dsn string, claim lock.Claim) lock.Config {
	t.Helper()
	database, err := session.ParseDSN(dsn, "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	return lock.Config{
		Claim: claim, Wait: lock.Forever, LockDelay: longDelay, Log: slog.New(slog.DiscardHandler),
		Session: session.Config{
			Database: database, Lease: lease, ConnectTimeout: 10 * time.Second, ApplicationName: "pglead:test@here",
		},
		PrivateServer: true, // otherwise first tries would wait, since the servers are new; nothing else depends on it
		Description:   describe.Description{Host: "here"},
	}
}

// leased sets the lease.
func leased(cfg lock.Config, d time.Duration) lock.Config {
	cfg.Session.Lease = d
	return cfg
}

func id(number int64) lockkey.ID { return lockkey.ID{Number: number} }

// pairID is the lock of pg_advisory_lock(first, second).
func pairID(first, second int32) lockkey.ID {
	return lockkey.ID{Number: int64(first)<<32 | int64(uint32(second)), Pair: true}
}

// exclusive is the claim to locks of these numbers.
func exclusive(numbers ...int64) lock.Claim {
	var c lock.Claim
	for _, n := range numbers {
		c.IDs = append(c.IDs, id(n))
	}
	return c
}

func shared(number int64) lock.Claim {
	return lock.Claim{IDs: []lockkey.ID{id(number)}, Shared: true}
}

// slots is a claim to one of n locks whose numbers begin with number. The gate's number is one
// less.
func slots(number int64, n int) lock.Claim {
	gate := id(number - 1)
	c := lock.Claim{Gate: &gate}
	for i := range n {
		c.IDs = append(c.IDs, id(number+int64(i)))
	}
	return c
}

// acquire takes a lock that is free.
func acquire(t *testing.T, cfg lock.Config) *lock.Held {
	t.Helper()
	return contend(t, cfg).held(t)
}

// contender is a run that wants a lock, in a goroutine of its own.
type contender struct {
	stop func()
	done chan struct{}

	// Once it is done:
	got   *lock.Held
	err   error
	ended time.Time

	// Of its log:
	mu      sync.Mutex
	events  []string
	texts   []string
	reasons []string
}

func contend(t *testing.T, cfg lock.Config) *contender {
	t.Helper()
	return contendPreparing(t, cfg, nil)
}

// contendPreparing starts a contender that calls prepare.
func contendPreparing(t *testing.T, cfg lock.Config, prepare lock.Prepare) *contender {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c := &contender{stop: cancel, done: make(chan struct{})}
	cfg.Log, cfg.Observer.Away = slog.New(c), c.away
	go func() {
		defer close(c.done)
		c.got, c.err = lock.NewCandidate(cfg).Acquire(ctx, prepare)
		c.ended = time.Now()
	}()
	t.Cleanup(func() {
		cancel()
		<-c.done
		if c.got != nil {
			c.got.Close()
		}
	})
	return c
}

// longest is how long a test waits for what has to come.
const longest = time.Minute

// held waits for the contender's end, and returns what it was granted.
func (c *contender) held(t *testing.T) *lock.Held {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(longest):
		t.Fatalf("still waits, after %v", c.said())
	}
	if c.err != nil {
		t.Fatal(c.err)
	}
	return c.got
}

// waits says whether the contender still waits.
func (c *contender) waits() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (c *contender) said() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// why returns the reasons that the log has for waits and losses.
func (c *contender) why() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.reasons)
}

// away notes that the contender waits for the end of a pause.
func (c *contender) away(obstacle error) {
	if errors.As(obstacle, new(*ledger.PausedError)) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.events = append(c.events, "paused")
	}
}

// A contender is a log's handler.
func (c *contender) Enabled(context.Context, slog.Level) bool { return true }
func (c *contender) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *contender) WithGroup(string) slog.Handler            { return c }
func (c *contender) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.texts = append(c.texts, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "event":
			c.events = append(c.events, a.Value.String())
		case "reason":
			c.reasons = append(c.reasons, a.Value.String())
		}
		return true
	})
	return nil
}

func release(t *testing.T, h *lock.Held) {
	t.Helper()
	h.Call(t.Context())
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// tear ends a holder's session. The holder's command can't know of that yet.
func tear(t *testing.T, server *localpg.Server, h *lock.Held) {
	t.Helper()
	query(t, server, fmt.Sprintf("SELECT pg_terminate_backend(%d, 60000)", h.Session.BackendPID()))
}

// inLine waits until this many waiters stand in a lock's line, have looked, and listen.
func inLine(t *testing.T, server *localpg.Server, line lockkey.ID, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d wait for %s", n, line), func() bool {
		settled := 0
		for _, text := range query(t, server, fmt.Sprintf(`SELECT a.query FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
WHERE locktype = 'advisory' AND classid = %d AND objsubid = 1 AND objid <> 4294967295 AND granted AND a.state = 'idle'`, advisory.TicketClass(line))) {
			// A waiter's requests are a try, and LISTEN with a ticket and, after the marks, a look.
			// Between two of these queries the session is idle for an instant.
			looked := strings.Contains(text, "MATERIALIZED") || strings.Contains(text, "pg_advisory_unlock")
			if d, ok := describe.Parse(text); ok && (d.Request == 2 && looked || d.Request > 2) {
				settled++
			}
		}
		return settled == n
	})
}

// plain is a session of another program.
func plain(t *testing.T, dsn string, sql ...string) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, q := range sql {
		run(t, conn, q)
	}
	return conn
}

// run returns the values of a statement's rows.
func run(t *testing.T, conn *pgconn.PgConn, sql string) []string {
	t.Helper()
	values, err := localpg.Ask(t.Context(), conn, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

func advisoryLocks(t *testing.T, server *localpg.Server) string {
	t.Helper()
	return query(t, server, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0]
}

func kindOf(err error) session.Kind {
	var e *session.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}
