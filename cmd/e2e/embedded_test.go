package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg"
)

// embeddedHome is a place for root's private server, and a pglead that uses it.
type embeddedHome struct {
	t    *testing.T
	root string // closed to all but root
	home string
	dir  string // once there is a server
}

// newRootsHome is root's, whose server is another account's.
func newRootsHome(t *testing.T) *embeddedHome {
	t.Helper()
	racesNothing(t)
	requireRoot(t, "a server of another account")
	return newEmbeddedHome(t)
}

func newEmbeddedHome(t *testing.T) *embeddedHome {
	t.Helper()
	e := &embeddedHome{t: t}
	var err error
	for _, dir := range []*string{&e.root, &e.home} {
		if *dir, err = os.MkdirTemp("", "pglead-embedded"); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(e.home, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.stop()
		_ = os.RemoveAll(e.root)
		_ = os.RemoveAll(e.home)
	})
	return e
}

func (e *embeddedHome) command(args ...string) *exec.Cmd {
	cmd := command(e.t, args...)
	cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+e.home)
	return cmd
}

// run runs a command under the server's lock, which has to work and to say no more
// than where the server is.
func (e *embeddedHome) run() {
	e.t.Helper()
	cmd := e.command("run", "--dsn", "embedded", "--key", "k", "--", "echo", "ran")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	made, _ := filepath.Glob(filepath.Join(e.home, "pglead", "embedded-*"))
	if len(made) != 1 {
		e.t.Fatalf("%v: %s: there is %q", err, &said, made)
	}
	e.dir = made[0]
	want := " in " + e.dir + ": this lock is local to this machine and user\n"
	if err != nil || string(out) != "ran\n" || !strings.HasSuffix(said.String(), want) || strings.Count(said.String(), "\n") != 1 {
		e.t.Fatalf("%q, %v: %q", out, err, &said)
	}
}

// postmaster is the server's process number, or 0.
func (e *embeddedHome) postmaster() int {
	file, err := os.ReadFile(filepath.Join(e.dir, "data", "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(file), "\n")
	pid, _ := strconv.Atoi(line)
	return pid
}

// stop ends the server and its keeper.
func (e *embeddedHome) stop() {
	e.t.Helper()
	pid := e.postmaster()
	if pid == 0 {
		return
	}
	_ = unix.Kill(pid, unix.SIGINT)
	if !eventually(func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }) {
		e.t.Error("the server does not end")
	}
}

// asAccount runs a script as the server's account, which may fail.
func (e *embeddedHome) asAccount(script string) {
	e.t.Helper()
	account, err := localpg.Account()
	if err != nil {
		e.t.Fatal(err)
	}
	cmd := exec.CommandContext(e.t.Context(), "sh", "-c", script)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: account}
	if out, err := cmd.CombinedOutput(); err != nil {
		e.t.Logf("%v: %s", err, out)
	}
}

// plant is what a hostile account tries: links to root's own, in place of all that
// root may open, empty or give away.
func (e *embeddedHome) plant() {
	e.t.Helper()
	for name, target := range map[string]string{
		"log": "cron", "users.lock": "users", "start.lock": "start", "data.new": "precious", "socket": "precious",
	} {
		e.asAccount("cd " + e.dir + " && rm -rf " + name + " && ln -s " + e.root + "/" + target + " " + name)
	}
	e.asAccount("mkfifo " + e.dir + "/other")
}

// untouched: what the links led to is as it was.
func (e *embeddedHome) untouched() {
	e.t.Helper()
	entries, err := os.ReadDir(e.root)
	if err != nil {
		e.t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != "precious" {
			e.t.Errorf("root has made %s for the account", entry.Name())
		}
	}
	inside, err := os.ReadDir(filepath.Join(e.root, "precious"))
	if err != nil || len(inside) != 1 {
		e.t.Errorf("precious has %v, %v", inside, err)
	}
	if owner := ownerOf(e.t, filepath.Join(e.root, "precious")); owner != 0 {
		e.t.Errorf("precious belongs to %d", owner)
	}
	if info, err := os.Lstat(filepath.Join(e.dir, "log")); err != nil || !info.Mode().IsRegular() || ownerOf(e.t, filepath.Join(e.dir, "log")) != 0 {
		e.t.Errorf("the log is %v, %v", info, err)
	}
}

func ownerOf(t *testing.T, path string) uint32 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Uid
}

func (e *embeddedHome) precious() {
	e.t.Helper()
	precious := filepath.Join(e.root, "precious")
	err := os.Mkdir(precious, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(precious, "file"), nil, 0o600)
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// TestEmbeddedHostileAccount: the account that root's private server runs as gets
// nothing written, emptied or given away by root.
func TestEmbeddedHostileAccount(t *testing.T) {
	e := newRootsHome(t)
	e.precious()
	e.run()
	e.stop()
	e.plant()
	e.run()
	e.untouched()
}

// TestEmbeddedForeignPlace: root keeps nothing where another could redirect it.
func TestEmbeddedForeignPlace(t *testing.T) {
	requireRoot(t, "another's directory")
	e := newEmbeddedHome(t)
	account, err := localpg.Account()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(e.home, int(account.Uid), int(account.Gid)); err != nil {
		t.Fatal(err)
	}
	cmd := e.command("run", "--dsn", "embedded", "--key", "k", "--", "true")
	out, err := cmd.CombinedOutput()
	want := "pglead: k: root's embedded server can't be in " + e.home + ", since others can put something else in place of " + e.home +
		" (mode drwxr-xr-x): name another place by XDG_STATE_HOME, or unset it\n"
	if cmd.ProcessState.ExitCode() != 70 || string(out) != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
	if left, err := os.ReadDir(e.home); err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// TestWatchKeepsEmbedded: the private server counts who watches it for as long as
// that lasts, and not only until the garbage collector has been there.
func TestWatchKeepsEmbedded(t *testing.T) {
	racesNothing(t)
	e := newEmbeddedHome(t)
	e.run()
	// Much to see makes much garbage.
	conn, err := pgconn.Connect(t.Context(), (&localpg.Server{Socket: filepath.Join(e.dir, "socket")}).DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.Exec(t.Context(), "SELECT count(pg_advisory_lock(i)) FROM generate_series(1, 3000) AS i").Close(); err != nil {
		t.Fatal(err)
	}
	cmd := e.command("ls", "--watch", "--dsn", "embedded", "-o", "json")
	cmd.Env = append(cmd.Env, "GOGC=1")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
	}()
	lock, err := os.OpenFile(filepath.Join(e.dir, "users.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	looks := bufio.NewReader(stdout)
	for range 3 {
		if _, err := looks.ReadString('\n'); err != nil {
			t.Fatal("it watches no longer: ", err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Fatalf("the server may end under the watcher's feet: %v", err)
		}
	}
}

// TestEmbeddedPassed: --pass-dsn passes on how any program finds the private server, which has no
// other name for it.
func TestEmbeddedPassed(t *testing.T) {
	e := newEmbeddedHome(t)
	// The server is new, so elsewhere the first try would wait for a lock-delay.
	inner := e.command("run", "--dsn", "embedded", "--pass-dsn", "--key", "outer", "--", testbed.dir+"/pglead", "run", "-v", "--key", "inner", "--", "echo", "ran")
	if said, err := inner.CombinedOutput(); err != nil || !strings.Contains(string(said), "inner: lock acquired") || strings.Contains(string(said), "without evidence") {
		t.Errorf("%v: %s", err, said)
	}
	e.run()
	cmd := e.command("run", "--dsn", "embedded", "--pass-dsn", "--key", "k", "--", "sh", "-c", `psql -XAtqc "SELECT current_setting('data_directory')" "$PGLEAD_DSN"; pglead who k`)
	out, err := cmd.Output()
	if want := filepath.Join(e.dir, "data") + "\n"; err != nil || !strings.HasPrefix(string(out), want) || !strings.Contains(string(out), " (sh, process ") {
		t.Errorf("%q, %v", out, err)
	}
}
