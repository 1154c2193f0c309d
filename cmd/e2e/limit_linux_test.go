package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestProcessLimit: a command that uses up what its user may have of processes takes neither the
// guard with it nor, if the guard is killed then, pglead: Go's runtime ends a process that gets no
// thread. All that the command has started is dead when pglead ends.
func TestProcessLimit(t *testing.T) {
	racesNothing(t)
	requireRoot(t, "a user without other processes")
	const (
		user  = "64738"
		limit = "40"
		most  = "sh: 0: Cannot fork\n"
		fill  = `while :; do sleep 1000 & done`
		left  = `(?:sleep \(\d+\)|sh \(\d+\)|, )+(?: and \d+ more)?`
	)
	dsn, dir := openServer(t), openDir(t)
	for name, tt := range map[string]struct {
		command, says string
		status        int
	}{
		"limit": {fill, most + `pglead: limit: the command has ended; ending what it left running: ` + left + `\n`, 2},
		"limit and no guard": {`(` + fill + `); kill -KILL $PPID; sleep 1000`, most + `pglead: limit: the guard process died(?:; the command and what it had started were killed| before it said that the command runs; if it did run, it was killed)\n` +
			`pglead: hint: was it killed by hand, .* or by a limit on processes \(ulimit -u, pids.max\)\?\n`, 70},
	} {
		t.Run(name, func(t *testing.T) {
			for range 12 {
				cmd := exec.Command("setpriv", "--reuid", user, "--regid", "nogroup", "--clear-groups", "prlimit", "--nproc="+limit,
					filepath.Join(testbed.dir, "pglead"), "run", "--dsn", dsn, "--key", "limit", "--lock-delay", "0", "--", "sh", "-c", tt.command)
				var said bytes.Buffer
				cmd.Env, cmd.Dir, cmd.Stderr = []string{"PATH=" + os.Getenv("PATH")}, dir, &said
				_ = cmd.Run()
				if code := cmd.ProcessState.ExitCode(); code != tt.status {
					t.Errorf("exit status %d, want %d", code, tt.status)
				}
				says(t, said.String(), tt.says)
				if alive, _ := exec.Command("pgrep", "-u", user, "-x", "sleep|sh").Output(); len(alive) > 0 {
					t.Errorf("alive: %s", alive)
				}
				if t.Failed() {
					break
				}
			}
		})
	}
}

// TestProcessesNeeded: pglead and its guard need no more processes and threads than is documented.
// That number has a margin, since how many threads Go's runtime makes depends on the kernel's
// scheduling.
func TestProcessesNeeded(t *testing.T) {
	requireRoot(t, "a user without other processes")
	racesNothing(t)
	const user = "64739"
	dsn, dir := openServer(t), openDir(t)
	for range 12 {
		if !eventually(func() bool { return exec.Command("pgrep", "-u", user).Run() != nil }) {
			t.Fatal("the user has other processes")
		}
		cmd := exec.Command("setpriv", "--reuid", user, "--regid", "nogroup", "--clear-groups", "prlimit", "--nproc=30",
			filepath.Join(testbed.dir, "pglead"), "run", "--dsn", dsn, "--key", "needed", "--lock-delay", "0", "--", "true")
		cmd.Env, cmd.Dir = []string{"PATH=" + os.Getenv("PATH")}, dir
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("%v: %s", err, out)
		}
	}
}
