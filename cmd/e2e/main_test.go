package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/cmd"
	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// index says where to look for a test, by the beginnings of the files' names. These tests run
// pglead from the outside. From its packages they take the numbers of locks, what follows from a
// lease, the ledger's SQL, and the form of answers. They run in the repository's root. The
// scripts are in testdata/script.
const index = `
scripts                                           what each command says, and its exit status
acquire, line, handover                           the lock: first tries, the line, who has it next
crowd                                             many at once, and a full server
outage, proxy, quorum                             the server restarts, is silent, is left behind
standby                                           what a standby is asked
lead, each, each_guard_linux                      the other modes
fence, java, prepared                             other programs, and prepared transactions
ledger_terminal, ledger_upgrade, ledger_killed    what a terminal is told of it, pg_upgrade, and SIGKILL
goodbye, events                                   what a run leaves in the server, and in the log
guard, guard_stopped, guard_traced_linux, guard_untold_linux, limit_linux, signals, unkillable
                                                  the command's processes, and what ends them
hidden_processes_linux, hung_program_linux        processes that get away from the process table; a network that hangs under pglead
liar, untrusted, planted                          servers, roles and sessions that say, or make, anything at all
embedded, setup, recipes                          --dsn embedded, testdata/setup, cmd/RECIPES.md
screen, terminal, plain_terminal, streams         a terminal, or one that can do little, and a reader that doesn't read
ls_watch                                          ls --watch, whose session the server ends
environments, systemd                             cron, ordinary users, PID 1, other namespaces
main                                              for all tests
`

func TestIndex(t *testing.T) { testserver.Index(t, index, "cmd/e2e") }

func TestMain(m *testing.M) {
	// go test takes an old result for this one's unless the test program has changed, and the
	// linker leaves out what is never called. So there is a call to all of pglead, which the
	// tests build.
	if m == nil {
		os.Exit(cmd.Main(nil))
	}
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	testserver.Parallel()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pglead-test")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a directory:", err)
		return 1
	}
	server, remove, err := localpg.Throwaway(nil)
	if errors.Is(err, localpg.ErrNoPrograms) {
		fmt.Fprintln(os.Stderr, err, "- to install them:", localpg.InstallHint())
		return 1
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "start a server:", err)
		return 1
	}
	defer remove()
	began := time.Now()
	if err := build(filepath.Join(dir, "pglead")); err != nil {
		fmt.Fprintln(os.Stderr, "build pglead:", err)
		return 1
	}
	time.Sleep(10*time.Second - time.Since(began)) // the default lock-delay: on a younger server first tries wait
	testbed = stage{dir: dir, server: server}
	return m.Run()
}

func build(file string) error {
	args := []string{"build", "-o", file}
	// The race detector watches the product if it watches the tests.
	if watched() {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// stage is what all tests of the product share: the built binary and a server.
type stage struct {
	dir    string // with the binary; everybody may enter it
	server *localpg.Server
}

// testbed is set up by TestMain, for the sake of its time.
var testbed stage

// racesNothing leaves a test out of a short run, which is for the race detector: what
// pglead does in it is raced by other tests, and its own subject is another.
func racesNothing(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("NOT TESTED: it adds nothing to what other tests race")
	}
}

// watched says whether the race detector watches.
func watched() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// environ is what a test's pglead runs with: a database by PG* variables, and
// nothing of the machine's own.
func (b stage) environ(home string) []string {
	return []string{
		"PATH=" + b.dir + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + home, "TMPDIR=" + home, "LC_ALL=C.UTF-8", "TERM=xterm",
		"PGHOST=" + b.server.Socket, "PGUSER=" + localpg.Superuser, "PGDATABASE=postgres",
		// The race detector's runtime sleeps for a second at each exit.
		"GORACE=atexit_sleep_ms=0 halt_on_error=1",
	}
}

// holders counts the sessions that hold a key.
func (b stage) holders(key string) int {
	id := lockOf(key)
	return b.locks(fmt.Sprintf("classid = %d AND objid = %d AND granted", id.ClassID(), id.ObjID()))
}

// waiters counts those that wait for it: each has a ticket.
func (b stage) waiters(key string) int {
	return b.locks(fmt.Sprintf("classid = %d AND objsubid = 1 AND objid <> 4294967295", advisory.TicketClass(lockOf(key))))
}

// settled counts those of them that know by now who has it: their requests are a
// ticket, a look, and LISTEN with another look.
func (b stage) settled(key string) int {
	values, err := b.server.Query("postgres", fmt.Sprintf(`SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND classid = %d AND objsubid = 1 AND objid <> 4294967295
			AND state = 'idle' AND substring(query FROM 'beat=''([0-9]+)''')::int >= 3`, advisory.TicketClass(lockOf(key))))
	if err != nil {
		return -1
	}
	n, _ := strconv.Atoi(values[0])
	return n
}

func (b stage) locks(where string) int {
	values, err := b.server.Query("postgres", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND "+where)
	if err != nil {
		return -1
	}
	n, _ := strconv.Atoi(values[0])
	return n
}

// eventually looks as seldom as testserver.Eventually does.
func eventually(condition func() bool) bool {
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(30 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// command is a run of the built pglead, from a directory of the test's own.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(testbed.dir, "pglead"), args...)
	cmd.Env, cmd.Dir = testbed.environ(home), home
	return cmd
}

// outcome runs pglead and returns its exit status and standard error.
func outcome(t *testing.T, args ...string) (status int, stderr string) {
	t.Helper()
	var buf bytes.Buffer
	cmd := command(t, args...)
	cmd.Stderr = &buf
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), buf.String()
}

// shellStatus is an exit status as a shell says it.
func shellStatus(state *os.ProcessState) int {
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// says fails unless a text is what a regular expression says, from end to end.
func says(t *testing.T, text, want string) {
	t.Helper()
	if !regexp.MustCompile(`\A(?:` + want + `)\z`).MatchString(text) {
		t.Errorf("it says\n%s\nwant\n%s", text, want)
	}
}

// start starts a command and returns its first line. The command's input ends
// with release.
func start(t *testing.T, cmd *exec.Cmd) (line string, release func()) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Errorf("%s: %v", filepath.Base(cmd.Path), err)
	}
	return strings.TrimSpace(line), func() { _ = stdin.Close() }
}

// candidate is a node that stands for election.
type candidate struct {
	*exec.Cmd
	said *lockedBuffer
}

// launch starts a pglead whose standard error is kept.
func launch(t *testing.T, args ...string) candidate {
	t.Helper()
	c := candidate{command(t, args...), &lockedBuffer{}}
	c.Stderr = c.said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c
}

// ends waits for a pglead's end, and ends it if that does not come.
func (c candidate) ends() int {
	timer := time.AfterFunc(2*time.Minute, func() { _ = c.Process.Kill() })
	defer timer.Stop()
	_ = c.Wait()
	return c.ProcessState.ExitCode()
}

// lockedBuffer can be read while a process writes.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// alone is the beginning of a shell command that says "overlap" if another of
// its kind is alive. The kernel's lock ends with the last of its processes,
// however that ends.
func alone(log string) string {
	return fmt.Sprintf("exec 9>>%[1]s; flock -n 9 || echo overlap >&9; ", log)
}

var throwaway, ask = testserver.Start, testserver.Query

// openServer listens where every account of this machine can reach it.
func openServer(t *testing.T) (dsn string) {
	t.Helper()
	port := testserver.Port(t)
	throwaway(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	return fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres", port, localpg.Superuser)
}

// openDir is a directory that every account can write to.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pglead-open")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// connected is a connection that stays open, and what it was asked first.
func connected(t *testing.T, server *localpg.Server, sql string) *pgconn.PgConn {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if err == nil {
		_, err = conn.Exec(t.Context(), sql).ReadAll()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// pooled starts a pooler before the shared server and returns its DSN, or
// nothing where there is no such program.
func pooled(t *testing.T, mode string, connections int) (dsn string) {
	t.Helper()
	dsn, stop, err := testbed.server.Pooler(localpg.Superuser, map[string]string{
		"pool_mode": mode, "default_pool_size": strconv.Itoa(connections), "max_client_conn": "3000",
	})
	if errors.Is(err, localpg.ErrNoPooler) && os.Getenv("CI") == "" {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return dsn
}

// delayed are the delays, in seconds, that a pglead with --log-format json -v said.
func delayed(t *testing.T, said string) (delays []float64) {
	t.Helper()
	for line := range strings.Lines(said) {
		var event struct {
			Event string  `json:"event"`
			Delay float64 `json:"delay"`
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Errorf("%v: %s", err, line)
		}
		if event.Event == "delayed" {
			delays = append(delays, event.Delay)
		}
	}
	return delays
}
