package e2e

import (
	"syscall"
	"testing"
)

// TestStoppedHost: pglead and its guard get no processor time until the server has ended the session,
// as on a host that is frozen. The loss is told with that cause, not with the server's last word,
// and a command that is found to have ended meanwhile has not run under the lock.
func TestStoppedHost(t *testing.T) {
	const lost = `pglead: \w+: the lock in .* was lost \(last known held [\d.]+s before\): the lease ran out, since this process was stopped or had no time to run; `
	for key, tt := range map[string]struct{ job, says string }{
		"frozen":     {"echo; exec sleep 1000", `the command \(process \d+\) was killed`},
		"frozenends": {"echo; sleep 0.5", `the command \(process \d+\) had just ended: exit status 0`},
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			holder, said := command(t, "run", "--key", key, "--lease", "3s", "--", "sh", "-c", tt.job), &lockedBuffer{}
			holder.Stderr = said
			start(t, holder)
			guard := guardOf(t, holder.Process.Pid)
			if !eventually(func() bool {
				_ = holder.Process.Signal(syscall.SIGSTOP)
				_ = syscall.Kill(guard, syscall.SIGSTOP)
				return stopped(holder.Process.Pid) && stopped(guard)
			}) {
				t.Fatal("they are not stopped")
			}
			free := eventually(func() bool { return testbed.holders(key) == 0 })
			_ = syscall.Kill(guard, syscall.SIGCONT)
			_ = holder.Process.Signal(syscall.SIGCONT)
			_ = holder.Wait()
			if !free {
				t.Error("the server has not ended the session")
			}
			if code := holder.ProcessState.ExitCode(); code != 76 {
				t.Errorf("status %d, want 76", code)
			}
			says(t, said.String(), lost+tt.says+`\n`)
		})
	}
}
