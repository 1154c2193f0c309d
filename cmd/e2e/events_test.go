package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// documentedEvents are the reference's: what each event may say.
func documentedEvents(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("cmd/REFERENCE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Logs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	word := regexp.MustCompile("`([a-z_]+)`")
	events := map[string][]string{}
	var named [][]string // what the last row with a name was about, and so are those below it without one
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 {
			continue
		}
		if names := word.FindAllStringSubmatch(cells[1], -1); names != nil {
			named = names
		}
		var says []string
		for _, m := range word.FindAllStringSubmatch(cells[3], -1) {
			says = append(says, m[1])
		}
		for _, m := range named {
			events[m[1]] = append(events[m[1]], says...)
		}
	}
	return events
}

// TestEvents: what is logged is what the reference says, no more and, but for what
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
					t.Errorf("the reference doesn't know the event of %s", line)
				}
				seen[name] = true
				for attr := range event {
					if !slices.Contains([]string{"time", "level", "msg", "key", "event", "item"}, attr) && !slices.Contains(says, attr) {
						t.Errorf("the reference says nothing of %s in %s", attr, line)
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
		if _, err := testbed.server.Query("postgres", "SELECT pg_terminate_backend("+backend+")"); err != nil {
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
			if !eventually(func() bool { return testbed.waiters("ev2") == i+1 }) {
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
		if !eventually(func() bool { return testbed.waiters("ev3") == 1 }) {
			t.Fatal("it doesn't wait")
		}
		terminate(t, backend)
		if err := waiter.Wait(); err != nil {
			t.Error(err)
		}
		// One that is no pglead says nothing of its end.
		foreign, err := pgconn.Connect(t.Context(), testbed.server.DSN("postgres"))
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
		if !eventually(func() bool { return testbed.waiters("ev6") == 1 }) {
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
		stranger, err := pgconn.Connect(t.Context(), testbed.server.DSN("postgres"))
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
		if !eventually(func() bool { return testbed.waiters("ev6") == 1 }) {
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
		// The first takes processes of another user, the second a socket unit, the third hundreds
		// of messages, the fourth an outage (testdata/script/away.txtar), the next two a network
		// that is cut (runner/lock's tests of silence, and the torture), the next three a ledger
		// (testdata/script/ledger.txtar), then a guard that dies idle (TestEachGuardDies), and a
		// pooler (testdata/script/transaction.txtar).
		unseen := []string{"unkillable", "environment", "dropped", "back", "silent", "unheard", "done", "paused", "ledger", "guard", "repeats"}
		for name := range documented {
			if !seen[name] && !slices.Contains(unseen, name) {
				t.Errorf("the reference has the event %s, and it was not seen", name)
			}
		}
	})
}
