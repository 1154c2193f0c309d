package cmd

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/ledger"
)

// listenAsSystemd makes a notifier send to this test. read returns a message that comes within this
// time.
func listenAsSystemd(t *testing.T) (read func(within time.Duration) (message string, err error)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pglead-notify")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	address := &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"}
	conn, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", address.Name)
	return func(within time.Duration) (string, error) {
		_ = conn.SetReadDeadline(time.Now().Add(within))
		message := make([]byte, 1000)
		n, err := conn.Read(message)
		return string(message[:n]), err
	}
}

// TestPausedUnitIsReady: a unit counts as started although a pause keeps its command from starting.
func TestPausedUnitIsReady(t *testing.T) {
	read := listenAsSystemd(t)
	var cfg runner.Config
	(&options{u: newUI(io.Discard)}).observe(&cfg, "leading")
	why := &ledger.PausedError{Pause: ledger.Pause{Until: ledger.Endless(), By: "ann", Note: "disk swap"}}
	for range 3 {
		cfg.Lock.Observer.Away(why)
	}
	cfg.Lock.Observer.Away(nil)
	cfg.CommandObserver.Started()
	for _, want := range []string{"READY=1\nSTATUS=standing by; " + why.Error(), "STATUS=leading since "} {
		if message, err := read(time.Minute); err != nil || !strings.HasPrefix(message, want) {
			t.Errorf("%q, %v", message, err)
		}
	}
}

// TestWatchdogStarves: a process that is stuck doesn't feed the watchdog.
func TestWatchdogStarves(t *testing.T) {
	read := listenAsSystemd(t)
	fed := func(within time.Duration) bool {
		_, err := read(within)
		return err == nil
	}
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	n := newNotifier(newUI(io.Discard))
	if n == nil {
		t.Fatal("no notifier")
	}
	if fed(100 * time.Millisecond) {
		t.Error("fed although nothing has been said to be alive")
	}
	n.alive(time.Hour)
	if !fed(time.Minute) {
		t.Error("never fed")
	}
	n.alive(0)
	for fed(100 * time.Millisecond) { // what is under way; a test that hangs here has failed
	}
}

func TestWatchdogOfAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		usec, pid string
		want      time.Duration
	}{
		"none":      {"", "", 0},
		"nonsense":  {"often", "", 0},
		"anyone's":  {"2000000", "", time.Second},
		"this one":  {"2000000", "7", time.Second},
		"another's": {"2000000", "8", 0},
	} {
		getenv := func(name string) string {
			return map[string]string{"WATCHDOG_USEC": tt.usec, "WATCHDOG_PID": tt.pid}[name]
		}
		if got, ok := watchdogInterval(getenv, 7); got != tt.want || ok != (tt.want > 0) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
