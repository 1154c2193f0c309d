package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

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
		append(testbed.environ(t.TempDir()), "bash", "--norc")...)...)
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

// TestScreenDelay: a narrow terminal shows how long a lock-delay still lasts.
func TestScreenDelay(t *testing.T) {
	racesNothing(t)
	const key = "screen/delay-of-20-c" // the shared server is younger than the delay
	for columns, want := range map[int]string{
		80: `starts in 15h\d+m: the last holder may live on`,
		60: `starts in 15h\d+m: the [a-z ]+…`,
	} {
		s := newScreen(t, columns)
		s.types("clear; pglead run --key " + key + " --lease 24h -- true")
		s.shows(`\Apglead: ` + key + `: lock granted without evidence\s[^…:]*; the command starts [^…:]*\npglead: ` + key + `: ` + want + `\n+\z`)
		s.tmux("send-keys", "C-c")
		s.shows(`\n` + prompt + `\n*\z`)
	}
}

func TestScreen(t *testing.T) {
	racesNothing(t)
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
	stranger, err := pgconn.Connect(t.Context(), testbed.server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Exec(t.Context(), "SELECT pg_advisory_lock("+strconv.FormatInt(lockOf("screen").Number, 10)+")").ReadAll(); err != nil {
		t.Fatal(err)
	}
	s.types("clear; pglead run -d host=" + dir + "/db --key screen --wait forever --lease 6s -- sh -c 'echo it ru''ns'")
	s.shows(`\Apglead: screen: the database is away: [^\n]*\n(.*\n){1,3}pglead: screen: waiting for [1-9]\d*s: connect to [^\n]*\n+\z`)
	if err := os.Symlink(testbed.server.Socket, filepath.Join(dir, "db")); err != nil {
		t.Fatal(err)
	}
	s.shows(`\npglead: screen: the database is back after \d+s\npglead: screen: waiting for \d+s; held by a program that is not pglead [^\n]*\n+\z`)
	_ = stranger.Close(t.Context())
	s.shows(`\npglead: screen: starts in [1-4]s: the last holder may live on\n+\z`)
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
	s.types("status=$?; clear; echo status $status")
	s.shows("status 0")

	// What doesn't fit is left out of the middle; the slot stays, and help is wrapped.
	long := "screen/" + strings.Repeat("of-a-long-name/", 4) + "the-end"
	_, release = start(t, command(t, "run", "--key", long, "--slots", "2", "--lease", "3s", "--", "sh", "-c", "echo; read end"))
	s.types("clear; pglead ls '*/the-end'")
	s.shows(`\AKEY [^\n]*\nscreen/[^\n]*…[^\n]*the-end \(slot 1 of 2\) +exclusive [^\n]* 0\n` + prompt)
	release()
	s.types("clear; pglead run --help")
	s.shows(`\n +--log-format FORMAT +write the messages on standard error in\n {29,}this FORMAT: text or json \(default "text"\)\n[^\n]*\n` + prompt)

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

	// Interrupted during an outage it ends as it does at any other time.
	if err := server.Stop(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	s.shows(`\Aconnect to `)
	s.tmux("send-keys", "C-c")
	s.shows(`(?m)^` + prompt + `\n*\z`)
	s.types("status=$?; clear; echo status $status")
	s.shows("status 0")
}
