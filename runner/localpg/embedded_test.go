package localpg

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary be the keeper.
func TestMain(m *testing.M) {
	if status, ok := RunKeeper(os.Args); ok {
		os.Exit(status)
	}
	if os.Getenv("EMBEDDED_TEST_USER") != "" {
		if _, err := UseEmbedded(); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// stateHome is a place that the server's account can reach, as t.TempDir is
// not for root.
func stateHome(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgstate")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = exec.Command("pkill", "-f", "^"+keeperName+".*"+dir).Run()
		for exec.Command("pgrep", "-f", dir).Run() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		_ = os.RemoveAll(dir)
	})
	t.Setenv("XDG_STATE_HOME", dir)
	return dir
}

// TestFirstStartsAtOnce: one of them makes the server, and all find it.
func TestFirstStartsAtOnce(t *testing.T) {
	stateHome(t)
	const users = 5
	failed := make(chan error, users)
	for range users {
		go func() {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "EMBEDDED_TEST_USER=1")
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = errors.New(string(out))
			}
			failed <- err
		}()
	}
	for range users {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	// After a crash the next user starts it again.
	e, err := UseEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	server := &Server{Data: filepath.Join(e.Dir, dataName), Socket: filepath.Join(e.Dir, socketName)}
	first, err := server.Query("postgres", "SELECT pg_postmaster_start_time()")
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("pkill", "-KILL", "-f", "^"+keeperName+".*"+e.Dir).Run(); err != nil {
		t.Fatal(err)
	}
	for server.listening() {
		time.Sleep(10 * time.Millisecond)
	}
	again, err := UseEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	second, err := server.Query("postgres", "SELECT pg_postmaster_start_time()")
	if err != nil || second[0] == first[0] {
		t.Errorf("started at %v and again at %v, %v", first, second, err)
	}
}

// TestRelativeStateHome: a directory that is named relative to the working one is ignored, since
// the server has another.
func TestRelativeStateHome(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("XDG_STATE_HOME", "state")
	t.Setenv("HOME", t.TempDir())
	if dir, err := stateDir(15); err != nil || !filepath.IsAbs(dir) {
		t.Errorf("%q, %v", dir, err)
	}
	if left, err := os.ReadDir("."); len(left) > 0 {
		t.Errorf("left in the working directory: %v, %v", left, err)
	}
}

// TestJoinEmbedded: whoever is given the server's connection string uses the server while it is
// there, also where its socket has a short path of its own.
func TestJoinEmbedded(t *testing.T) {
	short := stateHome(t)
	long := filepath.Join(short, strings.Repeat("l", maxSocketDir))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, home := range map[string]string{"short": short, "long": long} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_STATE_HOME", home)
			e, err := UseEmbedded()
			if err != nil {
				t.Fatal(err)
			}
			if _, joined := JoinEmbedded(e.DSN + "x"); joined {
				t.Error("it joins another database")
			}
			inner, joined := JoinEmbedded(e.DSN)
			e.Close()
			if !joined {
				t.Fatal("it doesn't join")
			}
			if _, err := lockFile(e.Dir, "users", unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
				t.Errorf("the server may end under its user's feet: %v", err)
			}
			inner.Close()
			users, err := lockFile(e.Dir, "users", unix.LOCK_EX|unix.LOCK_NB)
			if err != nil {
				t.Fatalf("it is used for ever: %v", err)
			}
			users.close()
			t.Setenv("XDG_STATE_HOME", stateHome(t))
			if _, joined := JoinEmbedded(e.DSN); joined {
				t.Error("it joins the server of another place")
			}
		})
	}
}

// TestKeeperEnds: when nobody has used the server for a while, and not before.
func TestKeeperEnds(t *testing.T) {
	programs, err := FindPrograms()
	if err != nil {
		t.Fatal(err)
	}
	server, remove, err := Prepare(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	server.Programs = programs
	if err := server.Init(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(server.Data)
	users, err := lockFile(dir, "users", unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	const idle = 300 * time.Millisecond
	go func() { ended <- keep(server, dir, idle, func() {}) }()
	for !server.listening() {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-ended:
		t.Fatalf("ended under a user's feet: %v", err)
	case <-time.After(5 * idle):
	}
	users.close()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("never ends")
	}
	if server.listening() {
		t.Error("the server goes on without its keeper")
	}
}

func TestPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	if err := makePlace(dir); err != nil {
		t.Fatal(err)
	}
	if err := makePlace(dir); err != nil {
		t.Errorf("one's own directory: %v", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := makePlace(dir); err == nil {
		t.Error("a directory that is open to all is trusted")
	}
	if account, err := Account(); err == nil && account != nil {
		theirs := filepath.Join(t.TempDir(), "theirs")
		if err := MakeDir(theirs); err != nil {
			t.Fatal(err)
		}
		if err := makePlace(theirs); err == nil || !strings.Contains(err.Error(), "since it is another's: remove it") {
			t.Errorf("a directory of the server's account: %v", err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := makePlace(link); err == nil {
		t.Error("a symbolic link is trusted")
	}
}

// TestNamedPrograms: PG_BINDIR is the only place that counts.
func TestNamedPrograms(t *testing.T) {
	found, err := FindPrograms()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "bin")
	if err := os.Symlink(found.Dir, link); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PG_BINDIR", link)
	if named, err := FindPrograms(); err != nil || named.Dir != link || named.Major == 0 {
		t.Errorf("with PG_BINDIR=%s: %v, %v", link, named, err)
	}
	t.Setenv("PG_BINDIR", t.TempDir())
	if named, err := FindPrograms(); !errors.Is(err, ErrNoPrograms) {
		t.Errorf("in an empty directory: %v, %v", named, err)
	}
}
