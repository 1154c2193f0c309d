package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// index says where to look for a test, by the beginnings of the files' names.
const index = `
functions           the SQL functions, called as pglead calls them
install             over an older ledger, without libxml, beside a publication FOR ALL TABLES; an uninstall beside a run
state               what a ledger lacks that is not whole
fence, takeovers    pglead.fence beside starts
paused              which of many locks are paused
answer              how answers of the functions are read
check               whether a key succeeded in time, and how long its runs take
tick                the periods of --once-per
pattern             arguments that stand for several keys
setup               for all tests
`

func TestIndex(t *testing.T) { testserver.Index(t, index, ".") }

// remembering starts a server with a ledger that an ordinary owner of the database has installed,
// and with the role cron, which is granted it.
func remembering(t *testing.T, settings map[string]string) *localpg.Server {
	t.Helper()
	server := testserver.Start(t, settings)
	query(t, server, "CREATE ROLE boss LOGIN; CREATE ROLE cron LOGIN; CREATE ROLE other LOGIN; CREATE ROLE stranger LOGIN; ALTER DATABASE postgres OWNER TO boss; GRANT pg_signal_backend TO boss")
	owner := connect(t, server, "boss")
	for range 2 { // twice in a row
		if err := ledger.Install(t.Context(), asking(owner), ledger.Plan{Keep: ledger.Keep}); err != nil {
			t.Fatal(err)
		}
	}
	run(t, owner, "GRANT USAGE ON SCHEMA pglead TO cron, other")
	return server
}

func asking(conn *pgconn.PgConn) session.Connection { return plain{conn} }

// plain asks without any settings.
type plain struct{ *pgconn.PgConn }

func (p plain) Query(ctx context.Context, queries ...string) (rows session.Rows, err error) {
	results, err := p.Exec(ctx, strings.Join(queries, "; ")).ReadAll()
	for _, result := range results {
		for _, row := range result.Rows {
			var values []string
			for _, value := range row {
				values = append(values, string(value))
			}
			rows = append(rows, values)
		}
	}
	return rows, err
}

func connect(t *testing.T, server *localpg.Server, role string) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), strings.Replace(server.DSN("postgres"), "user="+localpg.Superuser, "user="+role, 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func try(t *testing.T, conn *pgconn.PgConn, sql string) (string, error) {
	t.Helper()
	rows, err := asking(conn).Query(t.Context(), sql)
	var values []string
	for _, row := range rows {
		values = append(values, row...)
	}
	return strings.Join(values, " "), err
}

// run returns the values of all rows.
func run(t *testing.T, conn *pgconn.PgConn, sql string) string {
	t.Helper()
	values, err := try(t, conn, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return values
}

// beside runs a query that may wait. It delivers the values and the error's code.
func beside(t *testing.T, conn *pgconn.PgConn, sql string) <-chan string {
	t.Helper()
	answers := make(chan string, 1)
	go func() {
		answer, err := try(t, conn, sql)
		answers <- answer + code(err)
	}()
	return answers
}

// awaitLock waits until a session waits for a lock.
func awaitLock(t *testing.T, server *localpg.Server, conn *pgconn.PgConn) {
	t.Helper()
	testserver.Eventually(t, "a session waits", func() bool {
		return query(t, server, fmt.Sprintf("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %d", conn.PID())) == "Lock"
	})
}

// query asks as a superuser.
func query(t *testing.T, server *localpg.Server, sql string) string {
	t.Helper()
	return strings.Join(testserver.Query(t, server, sql), " ")
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return fmt.Sprint(err)
}

// token draws a token.
func token(t *testing.T, conn *pgconn.PgConn) int64 {
	t.Helper()
	var n int64
	text := run(t, conn, "SELECT ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint << 48 | pg_current_xact_id()::text::bigint")
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// starting is a start in these tests: of lock 7, whose key is its number, too.
type starting struct {
	numbers string
	keys    string
	shared  bool
	token   int64
	system  string // SQL
	lease   string
	grace   string
	tick    string // SQL
	per     string
	clock   string
	backend string
	sure    bool
	closes  string
	heard   string
}

func of(token int64) starting {
	return starting{
		numbers: "7", keys: "'seven'", token: token, system: "(SELECT system_identifier::text FROM pg_control_system())", lease: "15s", grace: "0",
		tick: "NULL", per: "NULL", clock: "NULL", backend: "NULL", closes: "0",
	}
}

func (s starting) rest() string {
	count := 1 + strings.Count(s.numbers, ",")
	return fmt.Sprintf(`SELECT pglead.start_rest_1(ARRAY[%s]::bigint[], ARRAY[%s]::smallint[], ARRAY[%s], %t, %d, %s, 'here', 'ann', 1, 'job', '%s', '%s', NULL, %s, %s, %s, %s, %t, ARRAY[%s]::bigint[], ARRAY[%s]::bigint[])`,
		s.numbers, strings.TrimSuffix(strings.Repeat("1,", count), ","), s.keys, s.shared, s.token, s.system, s.lease, s.grace, s.tick, s.per, s.clock, s.backend, s.sure, s.closes, s.heard)
}

func (s starting) first() string {
	return fmt.Sprintf(`SELECT pglead.start_1(%s, 1::smallint, %s, %d, %s, 'here', 'ann', 1, 'job', '%s', '%s', NULL, %s, %s, %s)`,
		s.numbers, s.keys, s.token, s.system, s.lease, s.grace, s.tick, s.per, s.clock)
}

func finish(number, token int64, outcome string) string {
	return fmt.Sprintf("SELECT pglead.finish_1(%d, 1::smallint, %d, '%s', NULL, '0')", number, token, outcome)
}

// lapse is how long a test waits for what has to come.
const lapse = 30 * time.Second
