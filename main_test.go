package main_test

import (
	"bytes"
	"errors"
	"fmt"
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
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, theBench.environ(env.WorkDir)...)
			env.Vars = append(env.Vars, "DSN="+theBench.server.DSN("postgres"), "SERVER="+theBench.server.Socket)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"sql":   sql,
			"await": await,
		},
	})
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
// waiting KEY, unwaited KEY, gone PATTERN (no process has that in its command line).
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

// locks counts the sessions that hold a key, or wait for it.
func (b bench) locks(key, which string) int {
	id := lockkey.SipHash24(key)
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
		term.run("kill %1; wait")
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
