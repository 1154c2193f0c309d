package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/pgtest"
)

// bench is what all tests of the product share: the built binary and a server.
type bench struct {
	dir    string // with the binary; everybody may enter it
	server *pgtest.Server
}

// theBench is set up by TestMain, for the sake of its time.
var theBench bench

func TestMain(m *testing.M) {
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
	server, remove, err := pgtest.Throwaway(nil)
	if errors.Is(err, pgtest.ErrNoPrograms) {
		fmt.Fprintln(os.Stderr, err, "- to install them:", pgtest.InstallHint())
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
	theBench = bench{dir: dir, server: server}
	return m.Run()
}

func build(file string) error {
	args := []string{"build", "-o", file}
	// The race detector watches the product if it watches the tests.
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// environ is what a test's pglead runs with: a database by PG* variables, and
// nothing of the machine's own.
func (b bench) environ(home string) []string {
	return []string{
		"PATH=" + b.dir + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + home, "TMPDIR=" + home, "LC_ALL=C.UTF-8", "TERM=xterm",
		"PGHOST=" + b.server.Socket, "PGUSER=" + pgtest.Superuser, "PGDATABASE=postgres",
		// The race detector's runtime sleeps for a second at each exit.
		"GORACE=atexit_sleep_ms=0 halt_on_error=1",
	}
}

func TestScripts(t *testing.T) {
	pooler, statementPooler := pooled(t, "transaction", 3), pooled(t, "statement", 3)
	ledgerSQL := filepath.Join(theBench.dir, "ledger.sql")
	if err := os.WriteFile(ledgerSQL, []byte(ledger.SQL(ledger.Keep)), 0o644); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, theBench.environ(env.WorkDir)...)
			env.Vars = append(env.Vars, "DSN="+theBench.server.DSN("postgres"), "SERVER="+theBench.server.Socket,
				"POOLER="+pooler, "STATEMENT_POOLER="+statementPooler, "LEDGER_SQL="+ledgerSQL)
			return nil
		},
		Condition: func(what string) (bool, error) {
			if what != "pooler" {
				return false, fmt.Errorf("unknown condition %s", what)
			}
			return pooler != "", nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"sql":   sql,
			"await": await,
		},
	})
}

// pooled starts a pooler before the shared server and returns its DSN, or
// nothing where there is no such program.
func pooled(t *testing.T, mode string, connections int) (dsn string) {
	t.Helper()
	dsn, stop, err := theBench.server.Pooler(pgtest.Superuser, map[string]string{
		"pool_mode": mode, "default_pool_size": strconv.Itoa(connections), "max_client_conn": "3000",
	})
	if errors.Is(err, pgtest.ErrNoPooler) && os.Getenv("CI") == "" {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return dsn
}

// exits STATUS COMMAND... runs a command that must end with that status.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if neg || err != nil || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND...")
	}
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			got = 128 + int(status.Signal()) // as a shell says it
		}
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// sql QUERY prints the values of a query's answer, one a line.
func sql(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: sql QUERY")
	}
	values, err := theBench.server.Query("postgres", args[0])
	ts.Check(err)
	for _, v := range values {
		fmt.Fprintln(ts.Stdout(), v)
	}
}

// await waits until a condition holds: exists FILE, held KEY, free KEY,
// waiting KEY, unwaited KEY, gone PATTERN (no process has that in its command
// line). For KEYs see lockOf.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await exists|held|free|waiting|unwaited|gone WHAT")
	}
	what := args[1]
	var condition func() bool
	switch args[0] {
	case "exists":
		condition = func() bool {
			_, err := os.Stat(ts.MkAbs(what))
			return err == nil
		}
	case "held":
		condition = func() bool { return theBench.holders(what) > 0 }
	case "free":
		condition = func() bool { return theBench.holders(what) == 0 }
	case "waiting":
		condition = func() bool { return theBench.waiters(what) > 0 }
	case "unwaited":
		condition = func() bool { return theBench.waiters(what) == 0 }
	case "gone":
		condition = func() bool { return exec.Command("pgrep", "-f", what).Run() != nil }
	default:
		ts.Fatalf("await what?")
	}
	if !eventually(condition) {
		ts.Fatalf("never: %s", strings.Join(args, " "))
	}
}

// lockOf is the lock of a key, of slot i of a key that is written KEY@i, and,
// for int:N, that of the number itself.
func lockOf(key string) lockkey.ID {
	if number, ok := strings.CutPrefix(key, "int:"); ok {
		n, _ := strconv.ParseInt(number, 10, 64)
		return lockkey.ID{Number: n}
	}
	return lockkey.SipHash24(strings.Replace(key, "@", "\x00", 1))
}

// holders counts the sessions that hold a key.
func (b bench) holders(key string) int {
	id := lockOf(key)
	return b.locks(fmt.Sprintf("classid = %d AND objid = %d AND granted", id.ClassID(), id.ObjID()))
}

// waiters counts those that wait for it: each has a ticket.
func (b bench) waiters(key string) int {
	return b.locks(fmt.Sprintf("classid = %d AND objsubid = 1 AND objid <> 4294967295", lockkey.Ticket(lockOf(key))))
}

func (b bench) locks(where string) int {
	values, err := b.server.Query("postgres", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND "+where)
	if err != nil {
		return -1
	}
	n, _ := strconv.Atoi(values[0])
	return n
}

func eventually(condition func() bool) bool {
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(5 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}

// command is a run of the built pglead, from a directory of the test's own.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(theBench.dir, "pglead"), args...)
	cmd.Env, cmd.Dir = theBench.environ(home), home
	return cmd
}

// TestSoak is the load under which a team's own lock hung: taken on one
// connection of a pool, given back on another.
func TestSoak(t *testing.T) {
	processes, runs := 4, 75
	if testing.Short() {
		runs = 15
	}
	var wg sync.WaitGroup
	var ran, refused atomic.Int32
	for range processes {
		wg.Go(func() {
			for range runs {
				out, err := command(t, "run", "--key", "soak", "--", "true").CombinedOutput()
				var exit *exec.ExitError
				switch {
				case err == nil:
					ran.Add(1)
				case errors.As(err, &exit) && exit.ExitCode() == 75:
					refused.Add(1)
				default:
					t.Errorf("%v: %s", err, out)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d ran, %d were refused", ran.Load(), refused.Load())
	if ran.Load() == 0 {
		t.Error("nobody ever got the lock")
	}
	if theBench.holders("soak") != 0 {
		t.Error("the lock is not free at the end")
	}
	if !eventually(func() bool {
		left, err := theBench.server.Query("postgres", "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%soak@%'")
		return err == nil && left[0] == "0"
	}) {
		t.Error("connections are left behind")
	}
}

// terminal is an interactive shell on a real terminal.
type terminal struct {
	t   *testing.T
	pty *os.File

	mu  sync.Mutex
	out []byte
}

// prompt shows in the terminal only when the shell has it: what is typed is
// echoed with the quotes that are missing here.
const prompt = "READY>"

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "bash", "--norc", "--noediting", "-i")
	home := t.TempDir()
	shell.Env, shell.Dir = append(theBench.environ(home), "PS1="+prompt), home
	file, err := pty.StartWithSize(shell, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, pty: file}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 4096)
		for {
			n, err := file.Read(buf)
			term.mu.Lock()
			term.out = append(term.out, buf[:n]...)
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = shell.Process.Kill()
		_ = file.Close()
		_ = shell.Wait()
		<-ended
	})
	term.expect(prompt)
	return term
}

func (term *terminal) write(keys string) {
	term.t.Helper()
	if _, err := term.pty.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

// expect waits for text, and forgets everything up to it. It returns what
// came before the text.
func (term *terminal) expect(text string) (before string) {
	term.t.Helper()
	if !eventually(func() bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		i := bytes.Index(term.out, []byte(text))
		if i < 0 {
			return false
		}
		before = string(term.out[:i])
		term.out = term.out[i+len(text):]
		return true
	}) {
		term.mu.Lock()
		defer term.mu.Unlock()
		term.t.Fatalf("the terminal never shows %q, but:\n%s", text, term.out)
	}
	return before
}

// run types a line and returns what it prints until the shell is back.
func (term *terminal) run(line string) string {
	term.t.Helper()
	term.write(line + "\n")
	return term.expect(prompt)
}

func TestTerminal(t *testing.T) {
	t.Run("ctrl-c ends a loop", func(t *testing.T) {
		term := newTerminal(t)
		term.write("for i in 1 2 3; do pglead run --key tty1 -- sh -c 'echo st''arted; exec sleep 1000'; done\n")
		term.expect("started")
		term.write("\x03")
		if rest := term.expect(prompt); strings.Contains(rest, "started") {
			t.Errorf("the loop went on: %q", rest)
		}
	})
	t.Run("ctrl-c arrives once", func(t *testing.T) {
		term := newTerminal(t)
		term.write(`pglead run --key tty2 -- bash -c 'trap "echo in''terrupted" INT; echo st''arted; read; echo do''ne'` + "\n")
		term.expect("started")
		term.write("\x03")
		term.expect("interrupted")
		term.write("\n")
		if rest := term.expect("done"); strings.Contains(rest, "interrupted") {
			t.Error("one Ctrl-C arrived twice")
		}
	})
	t.Run("ctrl-z, bg and fg", func(t *testing.T) {
		term := newTerminal(t)
		term.write("pglead run --key tty3 -- bash -c 'echo st''arted; read x; echo \"go\"t $x'\n")
		term.expect("started")
		term.write("\x1a")
		term.expect("Stopped")
		term.expect(prompt)
		term.write("fg\n")
		term.expect("pglead run")
		term.write("hello\n")
		term.expect("got hello")
		term.expect(prompt)
		if out := term.run("echo status $?"); !strings.Contains(out, "status 0") {
			t.Errorf("after fg: %q", out)
		}
	})
	t.Run("a command that stops itself gives the terminal back", func(t *testing.T) {
		term := newTerminal(t)
		term.write("pglead run --key tty4 -- bash -c 'kill -STOP $$; echo con''tinued'\n")
		term.expect("Stopped")
		term.expect(prompt)
		term.write("fg\n")
		term.expect("continued")
		term.expect(prompt)
	})
	t.Run("a shell inside", func(t *testing.T) {
		term := newTerminal(t)
		term.write("pglead run --key tty5 -- bash --norc --noediting -i\n")
		term.expect(prompt)
		term.write("sleep 1000\n")
		if !eventually(func() bool { return exec.Command("pgrep", "-xf", "sleep 1000").Run() == nil }) {
			t.Fatal("no sleep")
		}
		term.write("\x1a")
		term.expect("Stopped")
		term.expect(prompt)
		// Not wait: it may return for a job that is still taken for stopped, and
		// then exit doesn't end the shell.
		term.run("kill %1; while jobs %1 >/dev/null 2>&1; do sleep 0.01; done")
		if out := term.run("echo $PGLEAD_LOCK_KEY"); !strings.Contains(out, "tty5\r\n") {
			t.Errorf("inside: %q", out)
		}
		term.write("exit 9\n")
		term.expect(prompt)
		if out := term.run("echo status $?"); !strings.Contains(out, "status 9") {
			t.Errorf("after the inner shell: %q", out)
		}
	})
	t.Run("a pager", func(t *testing.T) {
		term := newTerminal(t)
		term.write("seq 1000 | pglead run --key tty6 -- less\n")
		term.expect("\r\n:")
		term.write("G")
		term.expect("1000")
		term.write("q")
		term.expect(prompt)
	})
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

func TestStandbyIsRefused(t *testing.T) {
	primary := throwaway(t, nil)
	standby, remove, err := primary.Standby(nil, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	status, stderr := outcome(t, "run", "--dsn", standby.DSN("postgres"), "--key", "k", "--", "true")
	if status != 78 || !strings.Contains(stderr, "is a standby") || !strings.Contains(stderr, "hint: connect to the primary") {
		t.Errorf("status %d, %s", status, stderr)
	}

	// Who waits waits for the promotion.
	waiter := command(t, "run", "-v", "--dsn", standby.DSN("postgres"), "--key", "k", "--wait", "2m", "--", "true")
	told, err := waiter.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := waiter.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(told).ReadString('\n')
	if err != nil || !strings.Contains(line, "standby") {
		t.Errorf("the waiter says %q, %v", line, err)
	}
	if err := standby.Run("pg_ctl", "promote", "-D", standby.Data); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, told)
	if err := waiter.Wait(); err != nil {
		t.Errorf("after the promotion: %v", err)
	}
}

// TestServerRestart: the holder loses, the waiter rides it out.
func TestServerRestart(t *testing.T) {
	for _, mode := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		t.Run(mode.String(), func(t *testing.T) {
			server := throwaway(t, nil)
			dsn := server.DSN("postgres")
			dir := t.TempDir()
			started := filepath.Join(dir, "started")
			holder := command(t, "run", "--dsn", dsn, "--key", "k", "--lease", "3s", "--", "sh", "-c", "touch "+started+"; sleep 98768")
			var said bytes.Buffer
			holder.Stderr = &said
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { _, err := os.Stat(started); return err == nil }) {
				t.Fatal("the holder never starts")
			}
			waiter := command(t, "run", "--dsn", dsn, "--key", "k", "--lease", "3s", "--wait", "2m", "--", "true")
			if err := waiter.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool {
				return bench{server: server}.waiters("k") == 1
			}) {
				t.Fatal("the waiter never waits")
			}
			if err := server.Stop(mode); err != nil {
				t.Fatal(err)
			}
			if err := holder.Wait(); holder.ProcessState.ExitCode() != 76 {
				t.Errorf("the holder: %v: %s", err, &said)
			}
			if err := server.StartLogged(); err != nil {
				t.Fatal(err)
			}
			if err := waiter.Wait(); err != nil {
				t.Errorf("the waiter: %v", err)
			}
		})
	}
}

// requireRoot skips, and fails in CI, where everything has to be tested.
func requireRoot(t *testing.T, what string) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("CI has to run as root")
	}
	t.Skip("NOT TESTED:", what, "needs root")
}

// openServer listens where every account of this machine can reach it.
func openServer(t *testing.T) (dsn string) {
	t.Helper()
	port, err := pgtest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	_, remove, err := pgtest.Throwaway(map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	return fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres", port, pgtest.Superuser)
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

// TestCron: a real cron daemon, in a mount namespace with crontabs of its own,
// fires a job of an ordinary user with next to no environment.
func TestCron(t *testing.T) {
	requireRoot(t, "cron")
	if testing.Short() {
		t.Skip("NOT TESTED: cron takes up to a minute")
	}
	dsn, dir := openServer(t), openDir(t)
	tab := fmt.Sprintf("PGLEAD_DSN=%s\nPGLEAD_KEY=cron\n* * * * * %s/pglead run -- sh -c 'id -un; env' >%s/out 2>%s/err; echo $? >%s/status\n",
		dsn, theBench.dir, dir, dir, dir)
	if err := os.WriteFile(filepath.Join(dir, "tab"), []byte(tab), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("unshare", "--mount", "sh", "-ec", `
		mount -t tmpfs none /var/spool/cron && mkdir -m 1730 /var/spool/cron/crontabs && chgrp crontab /var/spool/cron/crontabs
		mkdir -p /etc/cron.d && mount -t tmpfs none /etc/cron.d && mount --bind /dev/null /etc/crontab
		mount -t tmpfs none /run
		install -o nobody -g crontab -m 600 "$0/tab" /var/spool/cron/crontabs/nobody
		exec cron -f`, dir)
	daemon.Stdout, daemon.Stderr = os.Stderr, os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	read := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(dir, name))
		return string(text)
	}
	for began := time.Now(); read("status") == "" && time.Since(began) < 3*time.Minute; {
		time.Sleep(100 * time.Millisecond)
	}
	if read("status") != "0\n" || read("err") != "" {
		t.Errorf("status %q, standard error %q", read("status"), read("err"))
	}
	for _, want := range []string{"nobody\n", "PGLEAD_LOCK_KEY=cron\n", "PGLEAD_DSN=withheld\n"} {
		if !strings.Contains(read("out"), want) {
			t.Errorf("the job's output has no %q:\n%s", want, read("out"))
		}
	}
}

// TestOrdinaryUser: without root, without a home, and with the embedded server.
func TestOrdinaryUser(t *testing.T) {
	requireRoot(t, "to become another user")
	dir := openDir(t)
	cmd := exec.Command("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
		filepath.Join(theBench.dir, "pglead"), "run", "--dsn", "embedded", "--key", "k", "--", "id", "-un")
	cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=" + dir}, dir
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	t.Cleanup(func() { _ = exec.Command("pkill", "-f", "^embedded-postgres-keeper.*"+dir).Run() })
	if err != nil || string(out) != "nobody\n" {
		t.Errorf("%q, %v: %s", out, err, &said)
	}
	if !strings.Contains(said.String(), "this lock is local to this machine") {
		t.Errorf("the embedded server is not announced: %s", &said)
	}
}

// TestSurroundings: what pglead has to get by with in containers, under sudo
// and in the hands of careful administrators.
func TestSurroundings(t *testing.T) {
	requireRoot(t, "to take things away from an ordinary user")
	if _, err := exec.LookPath("sudo"); err != nil && os.Getenv("CI") == "" {
		t.Skip("NOT TESTED: sudo, which testdata/setup tests installs")
	}
	dsn := openServer(t)
	asNobody := []string{"setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--"}
	pglead := []string{filepath.Join(theBench.dir, "pglead"), "run", "--"}
	for name, tt := range map[string]struct {
		around []string
		job    string
		want   string
	}{
		"no home, read-only file system": {
			around: append([]string{"unshare", "--mount", "sh", "-ec", `
				mount --rbind / /mnt; mount -o remount,bind,ro /mnt; mount --bind /tmp /mnt/tmp; mount -o remount,bind,ro /mnt/tmp
				exec chroot /mnt "$0" "$@"`}, asNobody...),
			job: `! touch "$0" 2>/dev/null && id -un`, want: "nobody\n",
		},
		"no standard streams but output": {
			around: append(slices.Clone(asNobody), "sh", "-c", `exec "$0" "$@" <&- 2>&-`),
			job:    "id -un", want: "nobody\n",
		},
		"few files": {
			around: append(slices.Clone(asNobody), "bash", "-c", `ulimit -n 32; exec "$0" "$@"`),
			job:    "ulimit -n", want: "32\n",
		},
		"sudo -E": {
			around: []string{"sudo", "-E", "-u", "nobody"},
			job:    `echo "$(id -un) $PGLEAD_LOCK_KEY"`, want: "nobody surroundings\n",
		},
		"nohup": {
			around: append(slices.Clone(asNobody), "nohup"),
			job:    "kill -HUP $PPID; kill -HUP $$; id -un", want: "nobody\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := openDir(t)
			args := slices.Concat(tt.around, pglead, []string{"sh", "-c", tt.job, filepath.Join(dir, "file")})
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "PGLEAD_DSN=" + dsn, "PGLEAD_KEY=surroundings", "PGLEAD_LOCK_DELAY=0"}, "/"
			var said bytes.Buffer
			cmd.Stderr = &said
			if out, err := cmd.Output(); err != nil || string(out) != tt.want {
				t.Errorf("%q, %v: %s", out, err, &said)
			}
		})
	}
}

// TestCancelledStep: a deployment in a CI step is cancelled midway, in the way
// of each CI system. Nothing of it is left, and the next one runs.
func TestCancelledStep(t *testing.T) {
	for name, cancel := range map[string]func(step int, cookie string){
		// GitHub's runner interrupts the shell, and later kills it and all its
		// descendants.
		"github": func(step int, _ string) {
			_ = syscall.Kill(step, syscall.SIGINT)
			time.Sleep(200 * time.Millisecond)
			for _, pid := range append([]int{step}, descendants(step)...) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		},
		// GitLab's ends the process group.
		"gitlab": func(step int, _ string) { _ = syscall.Kill(-step, syscall.SIGTERM) },
		// Jenkins ends every process that has the build's cookie.
		"jenkins": func(_ int, cookie string) {
			files, _ := filepath.Glob("/proc/[0-9]*/environ")
			for _, file := range files {
				environ, _ := os.ReadFile(file)
				if slices.Contains(strings.Split(string(environ), "\x00"), "JENKINS_NODE_COOKIE="+cookie) {
					pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
					_ = syscall.Kill(pid, syscall.SIGTERM)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cookie := "step-" + name + "-" + strconv.Itoa(os.Getpid())
			step := exec.Command("bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", `
				pglead run --key "$0" -- sh -c 'setsid sh -c "exec -a $0 sleep 1000" & echo deploying; touch started; sleep 1000; touch done' "$0" | tee log
				touch next`, cookie)
			step.Env, step.Dir = append(theBench.environ(dir), "JENKINS_NODE_COOKIE="+cookie), dir
			step.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if err := step.Start(); err != nil {
				t.Fatal(err)
			}
			exists := func(file string) bool { _, err := os.Stat(filepath.Join(dir, file)); return err == nil }
			if !eventually(func() bool { return exists("started") }) {
				t.Fatal("the step never starts")
			}
			cancel(step.Process.Pid, cookie)
			if err := step.Wait(); err == nil {
				t.Error("the cancelled step succeeds")
			}
			if !eventually(func() bool { return exec.Command("pgrep", "-f", cookie).Run() != nil }) {
				out, _ := exec.Command("pgrep", "-af", cookie).Output()
				t.Errorf("these are left:\n%s", out)
			}
			if out, err := command(t, "run", "--key", cookie, "--wait", "1m", "--", "echo", "next").CombinedOutput(); err != nil || string(out) != "next\n" {
				t.Errorf("the next step: %v: %s", err, out)
			}
			if exists("done") || exists("next") {
				t.Error("the step went on")
			}
		})
	}
}

// descendants are all processes that a process has started, and they.
func descendants(pid int) (all []int) {
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	for _, field := range strings.Fields(string(out)) {
		child, _ := strconv.Atoi(field)
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// TestFirstProcess: pglead as the first process of a container collects the
// orphans of others, passes signals on, and says by its status what it can't
// say by its death.
// TestForeignProc: where the guard would find no process to kill, nothing is
// started.
func TestForeignProc(t *testing.T) {
	requireRoot(t, "a process namespace")
	dir := openDir(t)
	cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", filepath.Join(theBench.dir, "pglead"), "run", "--key", "proc", "--", "touch", "never")
	cmd.Env, cmd.Dir = theBench.environ(dir), dir
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 78 || !strings.Contains(string(out), "/proc is another PID namespace's") {
		t.Errorf("exit status %d: %s", code, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "never")); err == nil {
		t.Error("the command was started")
	}
}

func TestFirstProcess(t *testing.T) {
	requireRoot(t, "a process namespace")
	dir := openDir(t)
	started := filepath.Join(dir, "started")
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
		filepath.Join(theBench.dir, "pglead"), "run", "--key", "first", "--", "sh", "-c", `
			test "$(ps -o pid= -C pglead)" -eq 1 || exit 99
			(setsid sh -c 'sleep 0.1 & exit' &)
			touch "$0"; exec sleep 1000`, started)
	cmd.Env, cmd.Dir = theBench.environ(dir), dir
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { _, err := os.Stat(started); return err == nil }) {
		_ = cmd.Process.Kill()
		t.Fatalf("never starts: %s", &said)
	}
	// An orphan that is nobody's but the first process's, as `docker exec` leaves.
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(cmd.Process.Pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	first := strings.TrimSpace(string(out))
	enter := exec.Command("nsenter", "--pid", "--mount", "--target", first, "sh", "-c", "(sleep 0.1 &) ; exit 0")
	if out, err := enter.CombinedOutput(); err != nil {
		t.Fatalf("nsenter: %v: %s", err, out)
	}
	if !eventually(func() bool {
		zombies, err := exec.Command("nsenter", "--pid", "--mount", "--target", first, "sh", "-c", "ps -e -o stat= | grep -c ^Z").Output()
		return err != nil && strings.TrimSpace(string(zombies)) == "0" && exec.Command("pgrep", "-xf", "sleep 0.1").Run() != nil
	}) {
		t.Error("zombies stay")
	}
	if err := exec.Command("kill", "-TERM", first).Run(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("status %d, want 143: %s", code, &said)
	}
}

// newcomers come without end, three at a time, until stop is called.
func newcomers(begin func() *exec.Cmd) (stop func()) {
	enough := make(chan struct{})
	var coming sync.WaitGroup
	for range 3 {
		coming.Go(func() {
			for {
				select {
				case <-enough:
					return
				default:
					_ = begin().Wait() // 0 or 75
				}
			}
		})
	}
	return func() {
		close(enough)
		coming.Wait()
	}
}

// TestOldestWaiterIsServed: newcomers, of whom there is no end, don't overtake
// those who stand in line.
func TestOldestWaiterIsServed(t *testing.T) {
	dir := t.TempDir()
	order := filepath.Join(dir, "order")
	end := filepath.Join(dir, "end")
	start := func(name string, wait string) *exec.Cmd {
		cmd := command(t, "run", "--key", "queue", "-q", "--wait", wait, "--", "sh", "-c", "echo "+name+" >>"+order+"; sleep 0.02")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	holder := command(t, "run", "--key", "queue", "--", "sh", "-c", "touch "+dir+"/held; until test -e "+end+"; do sleep 0.01; done")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { _, err := os.Stat(dir + "/held"); return err == nil }) {
		t.Fatal("the holder never starts")
	}
	var waiters []*exec.Cmd
	for i := range 10 {
		waiters = append(waiters, start(fmt.Sprintf("waiter%d", i), "2m"))
		if !eventually(func() bool { return theBench.waiters("queue") == i+1 }) {
			t.Fatal("a waiter doesn't stand in line")
		}
	}
	stop := newcomers(func() *exec.Cmd { return start("newcomer", "1s") })
	if !eventually(func() bool { return theBench.waiters("queue") > 10 }) {
		t.Fatal("no newcomer")
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, w := range waiters {
		if err := w.Wait(); err != nil {
			t.Errorf("waiter %d: %v", i, err)
		}
	}
	stop()
	_ = holder.Wait()
	text, err := os.ReadFile(order)
	if err != nil {
		t.Fatal(err)
	}
	served := strings.Fields(string(text))
	for i := range 10 {
		if want := fmt.Sprintf("waiter%d", i); len(served) <= i || served[i] != want {
			t.Fatalf("served in the order %v, want waiter0 … waiter9 first", served[:min(len(served), 15)])
		}
	}
}

// becomesRoot puts a setuid program into dir, on a file system that has to heed that.
func becomesRoot(t *testing.T, dir string) string {
	t.Helper()
	program, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal(err)
	}
	suid := filepath.Join(dir, "becomeroot")
	if out, err := exec.Command("install", "-m", "4755", program, suid).CombinedOutput(); err != nil {
		t.Fatalf("install: %s", out)
	}
	asNobody := []string{"--reuid", "nobody", "--regid", "nogroup", "--clear-groups"}
	if out, err := exec.Command(program, append(asNobody, program, "--dump")...).CombinedOutput(); err != nil {
		t.Fatalf("become nobody: %s", out)
	}
	if err := exec.Command(program, append(asNobody, suid, "--reuid", "0", "--clear-groups", "true")...).Run(); err != nil {
		t.Skipf("NOT TESTED: a setuid program does not become root in %s, which may be mounted nosuid (%v): name another place by TMPDIR", filepath.Dir(dir), err)
	}
	return suid
}

// TestUnkillable: a descendant of another user is reported, and the lock stays
// held while it lives.
func TestUnkillable(t *testing.T) {
	requireRoot(t, "a setuid program")
	dsn, dir := openServer(t), openDir(t)
	suid := becomesRoot(t, dir)
	cmd := exec.Command("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups",
		filepath.Join(theBench.dir, "pglead"), "run", "--dsn", dsn, "--key", "suid", "--kill-after", "100ms", "--lock-delay", "0", "--", "sh", "-c",
		suid+` --reuid 0 --regid 0 --clear-groups sh -c 'touch `+dir+`/started; exec sleep 3' & trap "" TERM; while :; do sleep 0.05; done`)
	cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { _, err := os.Stat(dir + "/started"); return err == nil }) {
		t.Fatalf("never starts: %s", &said)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if exec.Command("pgrep", "-xf", "sleep 3").Run() == nil {
		t.Error("pglead ended before the last of its command's processes")
	}
	if !strings.Contains(said.String(), "these processes can't be killed, and the lock stays held while they live: sleep (") {
		t.Errorf("not reported: %s", &said)
	}
}

// TestNoSecondCore: the command's core file is the one that matters.
func TestNoSecondCore(t *testing.T) {
	cmd := exec.Command("bash", "-c", `ulimit -c unlimited 2>/dev/null; exec pglead run --key core -- sh -c 'kill -SEGV $$'`)
	home := t.TempDir()
	cmd.Env, cmd.Dir = theBench.environ(home), home
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	status := exit.Sys().(syscall.WaitStatus)
	if !status.Signaled() || status.Signal() != syscall.SIGSEGV || status.CoreDump() {
		t.Errorf("status %v, core dumped: %v; want SIGSEGV without a core", status, status.CoreDump())
	}
}

// TestGuardStartsEarly: what pglead alone needs is not set up in the guard. With
// numbers that are none for arguments, it ends where it would begin.
func TestGuardStartsEarly(t *testing.T) {
	initialised := func(args ...string) string {
		cmd := &exec.Cmd{Path: filepath.Join(theBench.dir, "pglead"), Args: args, Env: []string{"GODEBUG=inittrace=1"}}
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	pglead, guard := initialised("pglead", "version"), initialised("lease-guard", "of process 1", "none", "none", "none")
	for _, needless := range []string{"net", "regexp", "crypto/tls", "crypto/x509", "golang.org/x/text/language"} {
		line := "\ninit " + needless + " @"
		if !strings.Contains(pglead, line) {
			t.Errorf("pglead does not initialise %s either: the test proves nothing\n%s", needless, pglead)
		}
		if strings.Contains(guard, line) {
			t.Errorf("the guard initialises %s: which import of runner/child needs it?\n%s", needless, guard)
		}
	}
	if !strings.Contains(guard, "\ninit os @") {
		t.Errorf("the guard was not reached: %s", guard)
	}
}

// BenchmarkHandover measures from the last act of a command that ends well to
// the first of the next one's, which has been waiting; and from SIGKILL of
// pglead to the instant at which the server has freed the lock.
func BenchmarkHandover(b *testing.B) {
	run := func(out io.Writer, in io.Reader, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(theBench.dir, "pglead"), append([]string{"run", "--key", "handover", "--wait", "1m", "--"}, args...)...)
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stdin = theBench.environ(b.TempDir()), b.TempDir(), out, in
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		return cmd
	}
	until := func(what string, condition func() bool) {
		if !eventually(condition) {
			b.Fatal("never: " + what)
		}
	}
	nanos := func(buf *bytes.Buffer) int64 {
		n, err := strconv.ParseInt(strings.TrimSpace(buf.String()), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	report := func(b *testing.B, times []time.Duration) {
		b.Helper()
		slices.Sort(times)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(times[len(times)*99/100].Microseconds())/1000, "p99-ms")
	}
	b.Run("clean", func(b *testing.B) {
		stamp := filepath.Join(b.TempDir(), "stamp")
		if out, err := exec.Command("cc", "-O2", "-static", "-o", stamp, "testdata/bench/stamp.c").CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		var times []time.Duration
		for b.Loop() {
			var ended, started bytes.Buffer
			in, proceed, err := os.Pipe()
			if err != nil {
				b.Fatal(err)
			}
			holder := run(&ended, in, stamp, "end")
			_ = in.Close()
			until("held", func() bool { return theBench.holders("handover") == 1 })
			waiter := run(&started, nil, stamp)
			until("waited for", func() bool { return theBench.waiters("handover") == 1 })
			time.Sleep(100 * time.Millisecond) // a standby has been one for longer than its own start takes
			_ = proceed.Close()
			if err := errors.Join(holder.Wait(), waiter.Wait()); err != nil {
				b.Fatal(err)
			}
			times = append(times, time.Duration(nanos(&started)-nanos(&ended)))
		}
		report(b, times)
	})
	b.Run("killed", func(b *testing.B) {
		// A plain session waits for the lock: its grant is the lock's release.
		var times []time.Duration
		conn, err := pgconn.Connect(b.Context(), theBench.server.DSN("postgres"))
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close(b.Context())
		id := lockkey.SipHash24("handover")
		for b.Loop() {
			holder := run(nil, nil, "sleep", "1000")
			until("held", func() bool { return theBench.holders("handover") == 1 })
			granted := make(chan time.Time, 1)
			go func() {
				_, _ = conn.Exec(context.Background(), fmt.Sprintf("SELECT pg_advisory_lock(%s)", id)).ReadAll()
				granted <- time.Now()
			}()
			until("waited for", func() bool { return theBench.locks("NOT granted") == 1 })
			killed := time.Now()
			_ = holder.Process.Kill()
			times = append(times, (<-granted).Sub(killed))
			_ = holder.Wait()
			if _, err := conn.Exec(b.Context(), fmt.Sprintf("SELECT pg_advisory_unlock(%s)", id)).ReadAll(); err != nil {
				b.Fatal(err)
			}
		}
		report(b, times)
	})
}

// TestJavaHolds shares a lock with a Java program that takes it by JDBC and
// Guava, without a number that anyone has copied.
func TestJavaHolds(t *testing.T) {
	const jars = "/usr/share/java/"
	_, err := os.Stat(jars + "guava.jar")
	_, err2 := os.Stat(jars + "postgresql.jar")
	java, err3 := exec.LookPath("java")
	if err := errors.Join(err, err2, err3); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("NOT TESTED: Java, which testdata/setup tests installs:", err)
	}
	port, err := pgtest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	// JDBC knows no Unix-domain sockets.
	server := throwaway(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})

	const key = "invoice_gen/SUB-1234"
	b := bench{dir: theBench.dir, server: server}
	pglead := func(command ...string) *exec.Cmd {
		home := t.TempDir()
		// The server is young and others may reach it: without a delay of 0 the
		// wait for a holder of its last life would be most of this test.
		args := append([]string{"run", "--key", key, "--lock-delay", "0", "--"}, command...)
		cmd := exec.CommandContext(t.Context(), filepath.Join(b.dir, "pglead"), args...)
		cmd.Env, cmd.Dir = append(b.environ(home), "PGPORT="+port), home
		return cmd
	}
	holdLock := func() *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), java, "-cp", jars+"guava.jar:"+jars+"postgresql.jar", "testdata/interop/HoldLock.java",
			"jdbc:postgresql://127.0.0.1:"+port+"/postgres?user="+pgtest.Superuser, key)
		cmd.Stderr = t.Output()
		return cmd
	}

	holder := holdLock()
	said, release := start(t, holder)
	if said != "granted" {
		t.Fatalf("the lock is free, and Java says %q", said)
	}
	var exit *exec.ExitError
	if out, err := pglead("echo", "ran").CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() != 75 || strings.Contains(string(out), "ran") {
		t.Errorf("Java holds the lock, and pglead ends with %v: %s", err, out)
	}
	release()
	if err := holder.Wait(); err != nil {
		t.Fatalf("Java: %v", err)
	}

	holder = pglead("sh", "-c", "echo holding; read line; echo over")
	holder.Stderr = t.Output()
	said, release = start(t, holder)
	if said != "holding" {
		t.Fatalf("Java has given the lock back, and pglead's command says %q", said)
	}
	if out, err := holdLock().Output(); err != nil || strings.TrimSpace(string(out)) != "refused" {
		t.Errorf("pglead holds the lock, and Java says %q (%v)", out, err)
	}
	release()
	if err := holder.Wait(); err != nil {
		t.Errorf("pglead: %v", err)
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

// TestEachShares: eight nodes with one list. Once all of them are at work no
// item is worked on twice.
func TestEachShares(t *testing.T) {
	const nodes, items = 8, 400
	dir := t.TempDir()
	var list strings.Builder
	for i := range items {
		fmt.Fprintf(&list, "%d\n", i)
	}
	if err := os.WriteFile(filepath.Join(dir, "list"), []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	// The first command of each node waits until every node has one. While a
	// command runs there is a directory that only one can make.
	const job = `mkdir "run-$1" || exit 1; touch "at-$0"; until test -e go; do sleep 0.01; done; echo "$1" >> "done-$0"; rmdir "run-$1"`
	var wg sync.WaitGroup
	for node := range nodes {
		cmd := command(t, "each", "--key", "shares/{}", "-a", filepath.Join(dir, "list"), "--", "sh", "-c", job, strconv.Itoa(node), "{}")
		cmd.Dir = dir
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("node %d: %v: %s", node, err, out)
			}
		})
	}
	if !eventually(func() bool {
		at, _ := filepath.Glob(filepath.Join(dir, "at-*"))
		return len(at) == nodes
	}) {
		t.Error("not all nodes are at work")
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	times := map[string]int{}
	for node := range nodes {
		text, _ := os.ReadFile(filepath.Join(dir, "done-"+strconv.Itoa(node)))
		worked := strings.Fields(string(text))
		t.Logf("node %d: %d items", node, len(worked))
		for _, item := range worked {
			times[item]++
		}
	}
	for i := range items {
		if n := times[strconv.Itoa(i)]; n != 1 {
			t.Errorf("item %d was worked on %d times", i, n)
		}
	}
}

// alone is the beginning of a shell command that says "overlap" if another of
// its kind is alive. The kernel's lock ends with the last of its processes,
// however that ends.
func alone(log string) string {
	return fmt.Sprintf("exec 9>>%[1]s; flock -n 9 || echo overlap >&9; ", log)
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// TestOldestWaiterGetsTheSlot: newcomers, of whom there is no end, don't
// overtake those who wait for a slot.
func TestOldestWaiterGetsTheSlot(t *testing.T) {
	const waiting = 6
	dir := t.TempDir()
	order := filepath.Join(dir, "order")
	begin := func(name, wait, script string) *exec.Cmd {
		cmd := command(t, "run", "--key", "line", "--slots", "2", "-q", "--wait", wait, "--", "sh", "-c", script, name)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	var holders []*exec.Cmd
	for i := range 2 {
		holders = append(holders, begin("holder", "0", fmt.Sprintf("until test -e %s/end%d; do sleep 0.01; done", dir, i)))
		if !eventually(func() bool { return theBench.holders(fmt.Sprintf("line@%d", i+1)) == 1 }) {
			t.Fatal("a holder never starts")
		}
	}
	var waiters []*exec.Cmd
	const work = " >>%s; sleep 0.02"
	for i := range waiting {
		waiters = append(waiters, begin(fmt.Sprintf("waiter%d", i), "2m", fmt.Sprintf("echo $0"+work, order)))
		// The first has the gate, the others stand before it.
		if !eventually(func() bool { return theBench.waiters("line@0") == i+1 }) {
			t.Fatal("a waiter doesn't stand in line")
		}
	}
	stop := newcomers(func() *exec.Cmd { return begin("newcomer", "1s", fmt.Sprintf("echo $0"+work, order)) })
	if !eventually(func() bool { return theBench.waiters("line@0") > waiting }) {
		t.Fatal("no newcomer")
	}
	finish := func(holder int) {
		if err := os.WriteFile(fmt.Sprintf("%s/end%d", dir, holder), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	finish(0)
	for i, w := range waiters {
		if err := w.Wait(); err != nil {
			t.Errorf("waiter %d: %v", i, err)
		}
	}
	stop()
	finish(1)
	for _, h := range holders {
		_ = h.Wait()
	}
	served := lines(t, order)
	for i := range waiting {
		if want := fmt.Sprintf("waiter%d", i); len(served) <= i || served[i] != want {
			t.Fatalf("served in the order %v", served[:min(len(served), waiting+3)])
		}
	}
}

// TestHerd: many more wait through a pooler than it has connections to the
// server, and more than it lets in. HERD=1000 go test -run Herd -v . is the
// large one.
func TestHerd(t *testing.T) {
	processes, connections, clients := 60, 5, 50
	if n, err := strconv.Atoi(os.Getenv("HERD")); err == nil {
		processes, connections, clients = n, 20, 3000
	}
	dsn, stop, err := theBench.server.Pooler(pgtest.Superuser, map[string]string{
		"pool_mode": "transaction", "default_pool_size": strconv.Itoa(connections),
		"max_client_conn": strconv.Itoa(clients), "query_wait_timeout": "5",
	})
	if err != nil {
		if os.Getenv("CI") == "" {
			t.Skip("NOT TESTED: poolers:", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(stop)
	log := filepath.Join(t.TempDir(), "log")
	began := time.Now()
	var ended sync.WaitGroup
	var mu sync.Mutex
	statuses := map[int]int{}
	var used time.Duration
	for range processes {
		cmd := command(t, "run", "--dsn", dsn, "--transaction", "--key", "herd", "--wait", "10m", "--lease", "60s", "--lock-delay", "0", "--",
			"sh", "-c", alone(log)+"echo $PGLEAD_TOKEN >&9")
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended.Go(func() {
			_ = cmd.Wait()
			mu.Lock()
			defer mu.Unlock()
			statuses[cmd.ProcessState.ExitCode()]++
			used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			if !cmd.ProcessState.Success() {
				t.Errorf("%v: %s", cmd.ProcessState, &said)
			}
		})
	}
	started := time.Since(began)
	ended.Wait()
	t.Logf("%d processes, all started after %v, all ended after %v, %v of processor time; exit statuses %v",
		processes, started.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), used.Round(time.Millisecond), statuses)
	tokens := lines(t, log)
	if len(tokens) != processes {
		t.Errorf("%d lines of %d processes", len(tokens), processes)
	}
	last := 0
	for _, line := range tokens {
		token, err := strconv.Atoi(line)
		if err != nil || token <= last {
			t.Errorf("%q after token %d", line, last)
		}
		last = token
	}
	if theBench.locks("true") != 0 {
		t.Error("the lock is not free at the end")
	}
}

// candidate is a node that stands for election.
type candidate struct {
	*exec.Cmd
	said *lockedBuffer
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

func lead(t *testing.T, dsn string, args ...string) candidate {
	t.Helper()
	return launch(t, append([]string{"lead", "--dsn", dsn, "--key", "lead", "--first-delay", "0", "--lease", "3s", "-v"}, args...)...)
}

// TestLead: of two nodes one leads, through a kill, an outage and a step-down.
func TestLead(t *testing.T) {
	server := throwaway(t, nil)
	dsn, log := server.DSN("postgres"), filepath.Join(t.TempDir(), "log")
	node := func(name string) candidate {
		return lead(t, dsn, "--", "sh", "-c", alone(log)+"echo "+name+" >&9; exec sleep 98763")
	}
	last := func() string {
		all := lines(t, log)
		return all[len(all)-1]
	}
	leads := func(who string) {
		t.Helper()
		if !eventually(func() bool { return last() == who }) {
			t.Fatalf("%s never leads: %v", who, lines(t, log))
		}
	}
	stands := func() {
		t.Helper()
		if !eventually(func() bool {
			return bench{server: server}.waiters("lead") == 1
		}) {
			t.Fatal("nobody stands by")
		}
	}
	a := node("a")
	leads("a")
	b := node("b")
	stands()
	if err := a.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	leads("b")

	c := node("c")
	stands()
	terms := len(lines(t, log))
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for _, node := range []candidate{b, c} {
		// A third attempt is after seconds.
		if !eventually(func() bool { return strings.Count(node.said.String(), "waiting for the database") >= 3 }) {
			t.Fatalf("not ridden out: %s", node.said)
		}
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return len(lines(t, log)) > terms }) {
		t.Fatal("after the outage nobody leads")
	}
	stands()
	leader, successor, name := b, c, "c"
	if last() == "c" {
		leader, successor, name = c, b, "b"
	}
	if err := leader.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = leader.Wait()
	if status := leader.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGTERM {
		t.Errorf("the leader that was told to step down: %v", leader.ProcessState)
	}
	leads(name)
	if err := successor.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = successor.Wait()
	if slices.Contains(lines(t, log), "overlap") {
		t.Errorf("two led at once: %v", lines(t, log))
	}
}

// TestLeadBeforeTheDatabase: a node that is up before its database waits for
// it, and one that will never be let in doesn't.
func TestLeadBeforeTheDatabase(t *testing.T) {
	server := throwaway(t, nil)
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	early := lead(t, server.DSN("postgres"), "--restart", "never", "--", "sh", "-c", "exit 9")
	denied := lead(t, strings.Replace(server.DSN("postgres"), pgtest.Superuser, "nobody", 1), "--", "true")
	for _, node := range []candidate{early, denied} {
		if !eventually(func() bool { return strings.Count(node.said.String(), "waiting for the database") >= 2 }) {
			t.Fatalf("not ridden out: %s", node.said)
		}
	}
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	_, _ = early.Wait(), denied.Wait()
	if status := early.ProcessState.ExitCode(); status != 9 {
		t.Errorf("the command's status is 9, its leader's %d: %s", status, early.said)
	}
	if status := denied.ProcessState.ExitCode(); status != 77 {
		t.Errorf("the status of a refused login is %d: %s", status, denied.said)
	}

	// Who has led before rides that out too.
	execute := func(sql string) {
		t.Helper()
		if _, err := server.Query("postgres", sql); err != nil {
			t.Fatal(err)
		}
	}
	execute("CREATE ROLE node LOGIN")
	known := lead(t, strings.Replace(server.DSN("postgres"), pgtest.Superuser, "node", 1), "--", "sh", "-c", "echo led >&2; exec sleep 98762")
	leads := func(times int) {
		t.Helper()
		if !eventually(func() bool { return strings.Count(known.said.String(), "led\n") == times }) {
			t.Fatalf("does not lead %d times: %s", times, known.said)
		}
	}
	leads(1)
	execute("ALTER ROLE node NOLOGIN")
	execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pglead:%'")
	if !eventually(func() bool { return strings.Contains(known.said.String(), "is not permitted to log in") }) {
		t.Fatalf("not refused: %s", known.said)
	}
	execute("ALTER ROLE node LOGIN")
	leads(2)
}

// documentedEvents are README's: what each event may say.
func documentedEvents(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Logs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	word := regexp.MustCompile("`([a-z_]+)`")
	events := map[string][]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		var says []string
		for _, m := range word.FindAllStringSubmatch(cells[3], -1) {
			says = append(says, m[1])
		}
		for _, m := range word.FindAllStringSubmatch(cells[1], -1) {
			events[m[1]] = says
		}
	}
	return events
}

// TestEvents: what is logged is what README says, no more and, but for what
// takes a fault to see, no less.
func TestEvents(t *testing.T) {
	documented := documentedEvents(t)
	seen := map[string]bool{}
	log := func(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
		t.Helper()
		file, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, "PGLEAD_LOG_FORMAT=json", "PGLEAD_VERBOSE=true")
		cmd.Stderr = file
		t.Cleanup(func() {
			_ = file.Close()
			for _, line := range lines(t, file.Name()) {
				var event map[string]any
				if err := json.Unmarshal([]byte(line), &event); err != nil {
					t.Errorf("%v: %s", err, line)
					continue
				}
				name, _ := event["event"].(string)
				says, ok := documented[name]
				if !ok {
					t.Errorf("README doesn't know the event of %s", line)
				}
				seen[name] = true
				for attr := range event {
					if !slices.Contains([]string{"time", "level", "msg", "key", "event", "item"}, attr) && !slices.Contains(says, attr) {
						t.Errorf("README says nothing of %s in %s", attr, line)
					}
				}
			}
		})
		return cmd
	}
	run := func(t *testing.T, status int, args ...string) {
		t.Helper()
		cmd := log(t, command(t, args...))
		_ = cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != status {
			t.Errorf("%q: exit status %d, want %d", args, got, status)
		}
	}
	held := func(t *testing.T, args ...string) (line string, release func()) {
		t.Helper()
		return start(t, log(t, command(t, append(args, "--", "sh", "-c", "echo $PGLEAD_BACKEND_PID; read end")...)))
	}
	terminate := func(t *testing.T, backend string) {
		t.Helper()
		if _, err := theBench.server.Query("postgres", "SELECT pg_terminate_backend("+backend+")"); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("ends", func(t *testing.T) {
		run(t, 0, "run", "--key", "ev1", "--slots", "2", "--on-released", "exit 3", "--", "sh", "-c", "sleep 1000 &")
		run(t, 0, "run", "--key", "ev1", "--min-hold", "1", "--", "true")
		run(t, 124, "run", "--key", "ev1", "--timeout", "0.1", "--kill-after", "0.1", "--", "sh", "-c", "trap '' TERM; while :; do sleep 0.01; done")
		run(t, 69, "run", "--key", "ev1", "--wait", "1", "--dsn", "host=/nosuch", "--", "true")
		run(t, 123, "each", "--key", "ev1/{}", "a", "b", "--", "false")
		run(t, 0, "run", "--dsn", "embedded", "--key", "ev1", "--", "true")
		run(t, 0, "lead", "--key", "ev1", "--first-delay", "0", "--restart", "on-failure", "--timeout", "1", "--", "sh", "-c", "test -e restarted && exit 0; touch restarted; exit 1")
	})
	t.Run("conflict and wait", func(t *testing.T) {
		_, release := held(t, "run", "--key", "ev2")
		run(t, 75, "run", "--key", "ev2", "--", "true")
		waiter := log(t, command(t, "run", "--key", "ev2", "--wait", "forever", "--", "true"))
		interrupted := log(t, command(t, "run", "--key", "ev2", "--wait", "forever", "--", "true"))
		for i, cmd := range []*exec.Cmd{waiter, interrupted} {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { return theBench.waiters("ev2") == i+1 }) {
				t.Fatal("it doesn't wait")
			}
		}
		_ = interrupted.Process.Signal(syscall.SIGTERM)
		_ = interrupted.Wait()
		release()
		if err := waiter.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("loss", func(t *testing.T) {
		backend, _ := held(t, "run", "--key", "ev3", "--lease", "3s")
		waiter := log(t, command(t, "run", "--key", "ev3", "--lease", "3s", "--wait", "forever", "--", "true"))
		if err := waiter.Start(); err != nil {
			t.Fatal(err)
		}
		if !eventually(func() bool { return theBench.waiters("ev3") == 1 }) {
			t.Fatal("it doesn't wait")
		}
		terminate(t, backend)
		if err := waiter.Wait(); err != nil {
			t.Error(err)
		}
		// One that is no pglead says nothing of its end.
		foreign, err := pgconn.Connect(t.Context(), theBench.server.DSN("postgres"))
		if err == nil {
			_, err = foreign.Exec(t.Context(), fmt.Sprintf("SELECT pg_advisory_lock(%s)", lockOf("ev6"))).ReadAll()
		}
		if err != nil {
			t.Fatal(err)
		}
		waiter = log(t, command(t, "run", "--key", "ev6", "--lock-delay", "0.1", "--wait", "forever", "--", "true"))
		if err := waiter.Start(); err != nil {
			t.Fatal(err)
		}
		if !eventually(func() bool { return theBench.waiters("ev6") == 1 }) {
			t.Fatal("it doesn't wait")
		}
		_ = foreign.Close(t.Context())
		if err := waiter.Wait(); err != nil {
			t.Error(err)
		}
		leader := log(t, command(t, "lead", "--key", "ev4", "--first-delay", "0", "--lease", "3s", "--", "sh", "-c", "echo $PGLEAD_BACKEND_PID; exec sleep 1000"))
		backend, _ = start(t, leader)
		terminate(t, backend)
		if !eventually(func() bool {
			text, err := os.ReadFile(leader.Stderr.(*os.File).Name())
			return err == nil && bytes.Contains(text, []byte(`"event":"standing"`))
		}) {
			t.Error("the leader doesn't stand again")
		}
		_ = leader.Process.Signal(syscall.SIGTERM)
		_ = leader.Wait()
	})
	t.Run("delay", func(t *testing.T) {
		stranger, err := pgconn.Connect(t.Context(), theBench.server.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stranger.Exec(t.Context(), "SELECT pg_advisory_lock("+strconv.FormatInt(lockOf("ev6").Number, 10)+")").ReadAll(); err != nil {
			t.Fatal(err)
		}
		waiter := log(t, command(t, "run", "--key", "ev6", "--lease", "3s", "--wait", "forever", "--", "true"))
		if err := waiter.Start(); err != nil {
			t.Fatal(err)
		}
		if !eventually(func() bool { return theBench.waiters("ev6") == 1 }) {
			t.Fatal("it doesn't wait")
		}
		_ = stranger.Close(t.Context())
		if err := waiter.Wait(); err != nil {
			t.Error(err)
		}
	})
	t.Run("step down", func(t *testing.T) {
		_, _ = held(t, "run", "--key", "ev5", "--lease", "3s")
		if out, err := command(t, "stepdown", "ev5", "--wait", "1m").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("nothing is made up", func(t *testing.T) {
		// The first takes processes of another user, the second two waiters on
		// two hosts, the third a socket unit, the fourth hundreds of messages, the
		// fifth an outage (testdata/script/away.txtar).
		unseen := []string{"unkillable", "yielded", "environment", "dropped", "back"}
		for name := range documented {
			if !seen[name] && !slices.Contains(unseen, name) {
				t.Errorf("README has the event %s, and it was not seen", name)
			}
		}
	})
}

// listen receives what a process tells systemd.
func listen(t *testing.T) (socket string, next func() string) {
	t.Helper()
	// A socket's path may have 107 bytes, and a test's directory has more.
	dir, err := os.MkdirTemp("", "pglead-notify")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return socket, func() string {
		t.Helper()
		buf := make([]byte, 4096)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

// TestNotify: systemd learns what a node is at, and the command doesn't speak
// for it.
func TestNotify(t *testing.T) {
	_, release := start(t, command(t, "run", "--key", "notify", "--", "sh", "-c", "echo; read end"))
	socket, next := listen(t)
	node := command(t, "lead", "--key", "notify", "--first-delay", "0", "--lease", "3s", "--", "sh", "-c",
		`env | grep -E '^(NOTIFY_SOCKET|WATCHDOG_|LISTEN_)' && exit 1; exec sleep 1000`)
	node.Env = append(node.Env, "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=200000", "LISTEN_FDS=1", "LISTEN_PID=1")
	var said bytes.Buffer
	node.Stderr, node.Stdout = &said, &said
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	expect := func(pattern string) {
		t.Helper()
		for range 1000 {
			message := next()
			if message == "WATCHDOG=1" {
				continue
			}
			if !regexp.MustCompile(pattern).MatchString(message) {
				t.Errorf("systemd is told %q, want %s", message, pattern)
			}
			return
		}
		t.Fatalf("systemd is never told %s", pattern)
	}
	fed := func(when string) {
		t.Helper()
		if message := next(); message != "WATCHDOG=1" {
			t.Errorf("%s systemd is told %q, want the watchdog's food", when, message)
		}
	}
	expect(`^READY=1\nSTATUS=standing by since \d{4}-\d\d-\d\d [0-9:]{8}; held by \S+ \(sh, process \d+ of .*\)( since \d{4}-\d\d-\d\d [0-9:]{8})?$`)
	fed("while it stands by")
	release()
	expect("^STATUS=leading since ")
	fed("while it leads")

	_ = node.Process.Signal(syscall.SIGTERM)
	expect("^STOPPING=1\n")
	if err := node.Wait(); err == nil {
		t.Error("the command's end by SIGTERM is not told")
	}
	away := command(t, "lead", "--key", "notify", "--first-delay", "0", "--dsn", "host=/nosuch", "--", "true")
	away.Env = append(away.Env, "NOTIFY_SOCKET="+socket)
	if err := away.Start(); err != nil {
		t.Fatal(err)
	}
	expect(`^READY=1\nSTATUS=standing by; the database has been away since \d{4}-\d\d-\d\d [0-9:]{8}: connect to /nosuch:5432/postgres: no server socket there$`)
	_ = away.Process.Signal(syscall.SIGTERM)
	_ = away.Wait()
	failing := command(t, "lead", "--key", "notify", "--first-delay", "0", "--", "false")
	failing.Env = append(failing.Env, "NOTIFY_SOCKET="+socket)
	if err := failing.Start(); err != nil {
		t.Fatal(err)
	}
	expect(`^READY=1\nSTATUS=leading since `)
	expect(`^STATUS=tries next at \d{4}-\d\d-\d\d [0-9:]{8}$`)
	_ = failing.Process.Signal(syscall.SIGTERM)
	_ = failing.Wait()
	if !strings.Contains(said.String(), "the sockets that systemd has opened (LISTEN_FDS) are not passed") {
		t.Errorf("it says: %s", &said)
	}
}

// screen is a terminal of tmux: what a person would see.
type screen struct {
	t      *testing.T
	socket string
}

func newScreen(t *testing.T, columns int) screen {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("CI") == "" {
			t.Skip("NOT TESTED: what a terminal shows: tmux is missing; testdata/setup tests installs it")
		}
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pglead-tmux")
	if err != nil {
		t.Fatal(err)
	}
	s := screen{t, filepath.Join(dir, "tmux")}
	t.Cleanup(func() {
		_ = exec.Command("tmux", "-S", s.socket, "kill-server").Run()
		_ = os.RemoveAll(dir)
	})
	s.tmux(append([]string{"-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(columns), "-y", "20", "env", "-i", "PS1=" + prompt},
		append(theBench.environ(t.TempDir()), "bash", "--norc")...)...)
	s.shows(prompt)
	return s
}

func (s screen) tmux(args ...string) string {
	s.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", s.socket}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// shows waits until the whole screen matches.
func (s screen) shows(pattern string) {
	s.t.Helper()
	wanted := regexp.MustCompile(pattern)
	var now string
	if !eventually(func() bool {
		now = s.tmux("capture-pane", "-p")
		return wanted.MatchString(now)
	}) {
		s.t.Errorf("the screen never shows %s, but:\n%s", pattern, now)
	}
}

func (s screen) types(line string) {
	s.t.Helper()
	s.tmux("send-keys", "-l", line)
	s.tmux("send-keys", "Enter")
}

func TestScreen(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT TESTED: it adds nothing to what other tests race")
	}
	_, release := start(t, command(t, "run", "--key", "screen", "--lease", "3s", "--", "sh", "-c", "echo; read end"))
	s := newScreen(t, 80)
	s.types("clear; pglead run --key screen --wait forever -- sh -c 'echo it ru''ns'")
	s.shows(`\Apglead: screen: waiting for \d+s; held by \S+ \(sh, process \d+ of .*\n+\z`)
	other := command(t, "run", "--key", "screen", "--wait", "forever", "--", "true")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	// In one line, however long it would be.
	s.shows(`\Apglead: screen: waiting for \d+s \(number 1 of 2 in line\); held by [^\n]*…\n+\z`)
	release()
	s.shows(`\Ait runs\n` + prompt + `\n+\z`)
	if err := other.Wait(); err != nil {
		t.Error(err)
	}

	// What else is in the way shows there, too: a database that is away, and then a
	// holder that may live on.
	dir, err := os.MkdirTemp("/tmp", "pglead-away")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	stranger, err := pgconn.Connect(t.Context(), theBench.server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Exec(t.Context(), "SELECT pg_advisory_lock("+strconv.FormatInt(lockOf("screen").Number, 10)+")").ReadAll(); err != nil {
		t.Fatal(err)
	}
	s.types("clear; pglead run -d host=" + dir + "/db --key screen --wait forever --lease 6s -- sh -c 'echo it ru''ns'")
	s.shows(`\Apglead: screen: the database is away: [^\n]*\n(.*\n){1,3}pglead: screen: waiting for [1-9]\d*s: connect to [^\n]*\n+\z`)
	if err := os.Symlink(theBench.server.Socket, filepath.Join(dir, "db")); err != nil {
		t.Fatal(err)
	}
	s.shows(`\npglead: screen: the database is back after \d+s\npglead: screen: waiting for \d+s; held by a program that is not pglead [^\n]*\n+\z`)
	_ = stranger.Close(t.Context())
	s.shows(`\npglead: screen: the lock is granted; its last holder may live on for another [1-3]s\n+\z`)
	s.shows(`\npglead: screen: the database is back after \d+s\nit runs\n` + prompt + `\n+\z`)

	// --watch follows, without what a shorter table leaves behind.
	_, release = start(t, command(t, "run", "--key", "screen/1", "--lease", "3s", "--", "sh", "-c", "echo; read end"))
	_, release2 := start(t, command(t, "run", "--key", "screen/2", "--lease", "3s", "--", "sh", "-c", "echo; read end"))
	s.types("clear; pglead ls --watch")
	s.shows(`KEY +MODE +HOLDER +FOR +TOKEN +WAIT\n(.*\n)*screen/2 +exclusive +\S+:\d+ sh +\d+s +\d+ +0\n`)
	for _, line := range strings.Split(s.tmux("capture-pane", "-p"), "\n") {
		if len(line) > 80 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
	release2()
	s.shows(`(?s)\A[^/]*screen/1[^/]*\z`)
	release()
	s.tmux("send-keys", "C-c")
	s.shows(`(?m)^` + prompt + `\n*\z`)
	s.types("clear; echo status $?")
	s.shows("status 0")

	// What doesn't fit is left out of the middle; the slot stays, and help is wrapped.
	long := "screen/" + strings.Repeat("of-a-long-name/", 4) + "the-end"
	_, release = start(t, command(t, "run", "--key", long, "--slots", "2", "--lease", "3s", "--", "sh", "-c", "echo; read end"))
	s.types("clear; pglead ls '*/the-end'")
	s.shows(`\AKEY [^\n]*\nscreen/[^\n]*…[^\n]*the-end \(slot 1 of 2\) +exclusive [^\n]* 0\n` + prompt)
	release()
	s.types("clear; pglead run --help")
	s.shows(`\n +--log-format text +text or json, on standard error\n {30,}\(default "text"\)\n[^\n]*\n` + prompt)

	// It goes on after an outage.
	server := throwaway(t, nil)
	s.types("clear; pglead ls --watch -d '" + server.DSN("postgres") + "'")
	s.shows(`\Ano locks in `)
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	s.shows(`\Aconnect to `)
	if err := server.StartLogged(); err != nil {
		t.Fatal(err)
	}
	s.shows(`\Ano locks in `)
}

// TestJournal: where standard error is the journal, messages have priorities.
func TestJournal(t *testing.T) {
	for _, tt := range []struct {
		format, want string
		args         []string
	}{
		{"text", "<3>pglead: ", []string{"run", "--dsn", "host=/nosuch"}},
		{"json", `<3>{"time":`, []string{"run", "--dsn", "host=/nosuch"}},
		{"text", "<5>pglead: ", []string{"lead", "--first-delay", "0", "--restart", "never"}},
		{"json", `<5>{"time":`, []string{"lead", "--first-delay", "0", "--restart", "never"}},
	} {
		format, want := tt.format, tt.want
		cmd := command(t, append(tt.args, "--key", "journal", "--log-format", format, "--", "true")...)
		file, err := os.Create(filepath.Join(t.TempDir(), "journal"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		cmd.Stderr = file
		cmd.Env = append(cmd.Env, fmt.Sprintf("JOURNAL_STREAM=%d:%d", stat.Dev, stat.Ino))
		_ = cmd.Run()
		said := lines(t, file.Name())
		if len(said) == 0 {
			t.Errorf("%q: nothing is said", tt.args)
		}
		for _, line := range said {
			if !strings.HasPrefix(line, want) && !strings.HasPrefix(line, "<3>pglead: hint: ") {
				t.Errorf("%s: %s", format, line)
			}
		}
	}
}

// TestStepDownTo: the one that is asked for is next, though another has waited
// longer.
func TestStepDownTo(t *testing.T) {
	requireRoot(t, "host names of its own")
	_, _ = start(t, command(t, "run", "--key", "to", "--lease", "3s", "--", "sh", "-c", "echo; read end"))
	log := filepath.Join(openDir(t), "log")
	var waiters []*exec.Cmd
	for i, host := range []string{"alpha", "beta", "gamma"} {
		cmd := command(t, "run", "--key", "to", "--wait", "forever", "--", "sh", "-c", "echo "+host+" >>"+log)
		cmd.Args = append([]string{"unshare", "--uts", "sh", "-c", "hostname " + host + `; exec "$0" "$@"`}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
		cmd.Path = "/usr/bin/unshare"
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waiters = append(waiters, cmd)
		if !eventually(func() bool { return theBench.waiters("to") == i+1 }) {
			t.Fatalf("%s does not wait", host)
		}
	}
	if out, err := command(t, "stepdown", "to", "--to", "beta", "--wait", "1m").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	for _, cmd := range waiters {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	if got := lines(t, log); len(got) != 3 || got[0] != "beta" {
		t.Errorf("next were %q, want beta first", got)
	}
}

// TestRecipes runs what the recipes say, with programs that do nothing, and
// that nobody else may run at that time.
func TestRecipes(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT TESTED: it adds nothing to what other tests race")
	}
	text, err := os.ReadFile("cmd/README.md")
	if err != nil {
		t.Fatal(err)
	}
	home := openDir(t)
	programs := regexp.MustCompile(`\./[a-z]+(\.sh)?\b`).FindAllString(string(text), -1)
	for _, program := range programs {
		if err := os.WriteFile(filepath.Join(home, program), []byte("#!/bin/sh\necho ran $PGLEAD_LOCK_KEY\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	shell := func(t *testing.T, script string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script)
		cmd.Env, cmd.Dir = append(theBench.environ(home), "PGLEAD_DSN="+theBench.server.DSN("postgres"), "PGLEAD_MIN_HOLD=0"), home
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
		return string(out)
	}
	step := regexp.MustCompile(`(?m)^ +(?:- run:|-) (pglead .*)$`)
	scheduled := regexp.MustCompile(`(?m)^\*/5 \* \* \* \* +(.*)$`)
	command := regexp.MustCompile(`(?m)command: \[(.*)\]$`)
	kinds := map[string]int{}
	for _, block := range regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		kind, body := block[1], block[2]
		var scripts []string
		switch kind {
		case "sh":
			scripts = strings.Split(strings.TrimSpace(body), "\n")
		case "yaml":
			for _, m := range step.FindAllStringSubmatch(body, -1) {
				scripts = append(scripts, m[1])
			}
			if m := command.FindStringSubmatch(body); m != nil {
				// For ever, but for the test.
				scripts = append(scripts, "PGLEAD_RESTART=never PGLEAD_FIRST_DELAY=0 "+strings.ReplaceAll(m[1], ", ", " "))
			}
		case "crontab":
			for _, m := range scheduled.FindAllStringSubmatch(body, -1) {
				scripts = append(scripts, strings.ReplaceAll(m[1], "--min-hold 1m", ""))
			}
		case "sql":
			kinds[kind]++
			if out := shell(t, `psql -XAtq "$PGLEAD_DSN" <<"END"`+"\n"+body+"END"); out != "t\nt\n" {
				t.Errorf("%s: %s", body, out)
			}
		}
		for _, script := range scripts {
			kinds[kind]++
			if out := shell(t, script); !strings.Contains(script, "-q ") && !strings.Contains(script, "pglead key") && !strings.Contains(out, "ran ") {
				t.Errorf("%s: the program was not run: %s", script, out)
			}
		}
	}
	for kind, least := range map[string]int{"sh": 6, "yaml": 3, "crontab": 1, "sql": 1} {
		if kinds[kind] < least {
			t.Errorf("%d steps of %s were run, want %d", kinds[kind], kind, least)
		}
	}
}

// TestFullServer: many more than the server has room for, at once, and each has
// its turn although it doesn't wait for its lock.
func TestFullServer(t *testing.T) {
	server := throwaway(t, map[string]string{"max_connections": "5", "superuser_reserved_connections": "0", "max_wal_senders": "0"})
	var ended sync.WaitGroup
	for i := range 40 {
		ended.Go(func() {
			out, err := command(t, "run", "--dsn", server.DSN("postgres"), "--connect-timeout", "1m", "--key", fmt.Sprint("full/", i), "--", "true").CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	ended.Wait()
}

// TestCrowd: of a crowd of waiters each has its turn, one after the other, and
// ls counts them.
func TestCrowd(t *testing.T) {
	const crowd, lockDelay = 45, 2 * time.Second
	server := throwaway(t, nil)
	dsn := server.DSN("postgres")
	holder, err := pgconn.Connect(t.Context(), dsn)
	if err == nil {
		_, err = holder.Exec(t.Context(), "SELECT pg_advisory_lock(7)").ReadAll()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Close(context.Background()) })
	var said lockedBuffer
	var waiters []*exec.Cmd
	tickets := fmt.Sprintf("classid = %d AND objsubid = 1", lockkey.Ticket(lockkey.ID{Number: 7}))
	for i := range crowd {
		cmd := command(t, "run", "--dsn", dsn, "--key-scheme", "int", "--key", "7", "--wait", "5m", "--lock-delay", lockDelay.String(), "--", "echo", "my turn")
		cmd.Stdout = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waiters = append(waiters, cmd)
		if !eventually(func() bool { return bench{server: server}.locks(tickets) == i+1 }) {
			t.Fatalf("never %d who wait", i+1)
		}
	}
	if n := (bench{server: server}).locks("NOT granted"); n != 0 {
		t.Errorf("%d block in the server", n)
	}
	out, err := command(t, "ls", "--dsn", dsn, "-o", "json").Output()
	var locks []struct {
		ID      int64             `json:"id"`
		Waiters []json.RawMessage `json:"waiters"`
	}
	if err := errors.Join(err, json.Unmarshal(out, &locks)); err != nil || len(locks) != 1 || locks[0].ID != 7 || len(locks[0].Waiters) != crowd {
		t.Errorf("ls: %v: %s", err, out)
	}
	if err := holder.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range waiters {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	if turns := strings.Count(said.String(), "my turn"); turns != crowd {
		t.Errorf("%d had their turn", turns)
	}
	if left := (bench{server: server}).locks("true"); left != 0 {
		t.Errorf("%d locks are left", left)
	}
}

// TestGoodbye: no end of a run looks to the server like a client that was lost.
func TestGoodbye(t *testing.T) {
	server := throwaway(t, nil)
	count := func(column string) string {
		rows, err := server.Query("postgres", "SELECT "+column+" FROM pg_stat_database WHERE datname = 'goodbye'")
		if err != nil {
			t.Fatal(err)
		}
		return rows[0]
	}
	if _, err := server.Query("postgres", "CREATE DATABASE goodbye"); err != nil {
		t.Fatal(err)
	}
	dsn := server.DSN("goodbye")
	run := func(want int, args ...string) {
		t.Helper()
		cmd := command(t, append([]string{"run", "--dsn", dsn, "--key", "goodbye"}, args...)...)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("%q: exit status %d, want %d: %s", args, got, want, out)
		}
	}
	run(0, "--", "true")
	run(3, "--", "sh", "-c", "exit 3")
	run(0, "--transaction", "--", "true") // has two sessions
	run(0, "--on-released", "true", "--", "true")
	nested := filepath.Join(theBench.dir, "pglead") + " run --dsn '" + dsn + "' --key goodbye"
	run(75, "--", "sh", "-c", nested+" -- true")
	run(75, "--", "sh", "-c", nested+" -q -- true")
	run(75, "--", "sh", "-c", nested+" -w 0.1 -- true")
	if !eventually(func() bool { return count("sessions") == "11" }) {
		t.Errorf("%s sessions, want 11", count("sessions"))
	}
	if n := count("sessions_abandoned"); n != "0" {
		t.Errorf("%s sessions seem to have lost their client", n)
	}
}
