package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
)

// TestStoppedHook: a hook that has stopped its guard, and takes too long, is killed like any other. It
// leaves the guard some time to say that the hook runs; on a busy machine the guard may take longer.
func TestStoppedHook(t *testing.T) {
	p, _ := signalsTo(t)
	ended := make(chan error, 1)
	go func() {
		const hook = "sleep 0.5; kill -STOP $PPID; exec sleep 3600"
		ended <- p.runHook([]string{"PATH=" + os.Getenv("PATH")}, hook, func(what string) { t.Error(what) })
	}()
	select {
	case err := <-ended:
		if err == nil || err.Error() != "killed, since it took longer than 10s" && err.Error() != "the guard process did not start the command in time" {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on for ever")
	}
}

// TestQueueOfHooks: of hooks that are too many to wait, the last ones run.
func TestQueueOfHooks(t *testing.T) {
	p, _ := signalsTo(t)
	dir := t.TempDir()
	said := make(chan string, 100)
	queue := func(command string) {
		p.queueHook([]string{"PATH=" + os.Getenv("PATH"), "DIR=" + dir}, `cd "$DIR" && `+command, func(what string) { said <- what })
	}
	queue(": >up; until test -e go; do sleep 0.01; done; echo first >>ran")
	testserver.Eventually(t, "the first runs", func() bool {
		_, err := os.Stat(filepath.Join(dir, "up"))
		return err == nil
	})
	const more = 3 * mostQueuedHooks
	for i := range more {
		queue(fmt.Sprintf("echo %d >>ran", i))
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.awaitHooks(lock.Observer{})
	ran, _ := os.ReadFile(filepath.Join(dir, "ran"))
	if want := "first\n16\n17\n18\n19\n20\n21\n22\n23\n"; string(ran) != want {
		t.Errorf("ran %q, not %q", ran, want)
	}
	for left := more - mostQueuedHooks; left > 0; left-- {
		if got, want := <-said, fmt.Sprintf("left out, since %d later hooks wait", mostQueuedHooks+left-1); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
