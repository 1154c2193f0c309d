package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

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
	tells := func(pattern string, args ...string) (end func()) {
		t.Helper()
		node := command(t, args...)
		node.Env = append(node.Env, "NOTIFY_SOCKET="+socket)
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		expect(pattern)
		return func() {
			_ = node.Process.Signal(syscall.SIGTERM)
			_ = node.Wait()
		}
	}
	const at = `\d{4}-\d\d-\d\d [0-9:]{8}`
	endDelayed := tells(`^READY=1\nSTATUS=starts at `+at+`: the last holder may live on$`,
		"run", "--key", "notify/2", "--lease", "24h", "--", "true") // the shared server is younger than the delay
	endStanding := tells(`^READY=1\nSTATUS=standing by since `+at+`; held by \S+ \(true, process \d+ of .*\) since `+at+`, its command starts at `+at+`$`,
		"run", "--key", "notify/2", "--wait", "forever", "--", "true")
	endStanding()
	endDelayed()
	tells(`^READY=1\nSTATUS=running since `+at+`$`, "run", "--key", "notify/3", "--", "sleep", "1h")()
	expect("^STOPPING=1\n")
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

// TestWatchdogDuringHooks: the watchdog is fed while only a hook runs, after the lease of the last
// answer is over.
func TestWatchdogDuringHooks(t *testing.T) {
	socket, next := listen(t)
	const lease = 3 * time.Second
	node := command(t, "run", "--key", "watchdog", "--lease", lease.String(), "--on-released", "touch began; until test -e end; do sleep 0.1; done", "--", "true")
	node.Env = append(node.Env, "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=200000")
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { return exists(filepath.Join(node.Dir, "began")) }) {
		t.Fatal("the hook never begins")
	}
	for over, fed := time.Now().Add(lease+time.Second), false; !fed; {
		fed = next() == "WATCHDOG=1" && time.Now().After(over)
	}
	if err := os.WriteFile(filepath.Join(node.Dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := node.Wait(); err != nil {
		t.Error(err)
	}
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
