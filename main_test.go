package main_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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
	dir, err := os.MkdirTemp("/tmp", "pglead-test")
	if err == nil {
		defer os.RemoveAll(dir)
		err = os.Chmod(dir, 0o755)
	}
	if err == nil {
		err = build(filepath.Join(dir, "pglead"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build pglead:", err)
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
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, theBench.environ(env.WorkDir)...)
			env.Vars = append(env.Vars, "DSN="+theBench.server.DSN("postgres"), "SERVER="+theBench.server.Socket,
				"POOLER="+pooler, "STATEMENT_POOLER="+statementPooler)
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
		condition = func() bool { return theBench.locks(what, "granted") > 0 }
	case "free":
		condition = func() bool { return theBench.locks(what, "granted") == 0 }
	case "waiting":
		condition = func() bool { return theBench.locks(what, "NOT granted") > 0 }
	case "unwaited":
		condition = func() bool { return theBench.locks(what, "NOT granted") == 0 }
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

// locks counts the sessions that hold a key, or wait for it.
func (b bench) locks(key, which string) int {
	id := lockOf(key)
	values, err := b.server.Query("postgres", fmt.Sprintf(
		"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %d AND objid = %d AND %s", id.ClassID(), id.ObjID(), which))
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
	const processes, runs = 4, 75
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
	if theBench.locks("soak", "granted") != 0 {
		t.Error("the lock is not free at the end")
	}
	if !eventually(func() bool {
		left, err := theBench.server.Query("postgres", "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pglead:soak@%'")
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
	primary, remove, err := pgtest.Throwaway(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
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
			server, remove, err := pgtest.Throwaway(nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(remove)
			dsn := server.DSN("postgres")
			dir := t.TempDir()
			started := filepath.Join(dir, "started")
			holder := command(t, "run", "--dsn", dsn, "--key", "k", "--", "sh", "-c", "touch "+started+"; sleep 98768")
			var said bytes.Buffer
			holder.Stderr = &said
			if err := holder.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { _, err := os.Stat(started); return err == nil }) {
				t.Fatal("the holder never starts")
			}
			waiter := command(t, "run", "--dsn", dsn, "--key", "k", "--wait", "2m", "--", "true")
			if err := waiter.Start(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool {
				n, err := server.Query("postgres", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
				return err == nil && n[0] == "1"
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
	dir, err := os.MkdirTemp("/tmp", "pglead-open")
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
		if !eventually(func() bool { return theBench.locks("queue", "NOT granted") == i+1 }) {
			t.Fatal("a waiter doesn't stand in line")
		}
	}
	stop := make(chan struct{})
	var newcomers sync.WaitGroup
	for range 3 {
		newcomers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					cmd := start("newcomer", "1s")
					_ = cmd.Wait() // 0 or 75
				}
			}
		})
	}
	if !eventually(func() bool { return theBench.locks("queue", "NOT granted") > 10 }) {
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
	close(stop)
	newcomers.Wait()
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

// TestUnkillable: a descendant of another user is reported, and the lock stays
// held while it lives.
func TestUnkillable(t *testing.T) {
	requireRoot(t, "a setuid program")
	dsn, dir := openServer(t), openDir(t)
	suid := filepath.Join(dir, "becomeroot")
	program, err := exec.LookPath("setpriv")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("install", "-m", "4755", program, suid).CombinedOutput(); err != nil {
		t.Fatalf("install: %s", out)
	}
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
			until("held", func() bool { return theBench.locks("handover", "granted") == 1 })
			waiter := run(&started, nil, stamp)
			until("waited for", func() bool { return theBench.locks("handover", "NOT granted") == 1 })
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
			until("held", func() bool { return theBench.locks("handover", "granted") == 1 })
			granted := make(chan time.Time, 1)
			go func() {
				_, _ = conn.Exec(context.Background(), fmt.Sprintf("SELECT pg_advisory_lock(%s)", id)).ReadAll()
				granted <- time.Now()
			}()
			until("waited for", func() bool { return theBench.locks("handover", "NOT granted") == 1 })
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
	server, remove, err := pgtest.Throwaway(map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)

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
