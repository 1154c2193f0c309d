package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestKilledUntold: if pglead is killed before it has read that its command has ended, the guard
// announces the end, so the next run does not wait for the lock-delay.
func TestKilledUntold(t *testing.T) {
	for _, mode := range []string{"run", "each"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			items := filepath.Join(t.TempDir(), "items")
			if err := os.WriteFile(items, []byte("untold\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			key, args := mode+"/untold", []string{"--key", "run/untold"}
			if mode == "each" {
				args = []string{"--key", "each/{}", "-a", items}
			}
			holder := command(t, append(append([]string{mode}, args...), "--", "sh", "-c", "echo; until test -e end; do sleep 0.02; done")...)
			start(t, holder)
			next := launch(t, "run", "--key", key, "--wait", "1m", "-v", "--log-format", "json", "--", "true")
			if !eventually(func() bool { return testbed.settled(key) == 1 }) {
				t.Fatalf("nobody waits: %s", next.said)
			}
			guard := guardOf(t, holder.Process.Pid)
			_ = holder.Process.Signal(syscall.SIGSTOP)
			if err := os.WriteFile(filepath.Join(holder.Dir, "end"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { return len(children(guard)) == 0 }) {
				t.Error("the command does not end")
			}
			_ = holder.Process.Kill()
			_ = holder.Wait()
			if status := next.ends(); status != 0 {
				t.Errorf("the next run: status %d: %s", status, next.said)
			}
			if delays := delayed(t, next.said.String()); len(delays) > 0 {
				t.Errorf("the next run waits for %v: %s", delays, next.said)
			}
			if !eventually(func() bool { return dead(guard) }) {
				t.Error("the guard goes on")
			}
		})
	}
}
