package torture

import (
	"os/exec"
	"path/filepath"
)

// oldCommit is the last one before waiters got tickets: its pgleads stand in the
// server's own queue, say nothing of who is next, and hear nothing of dead holders.
const oldCommit = "ff14d69"

// old says which contenders of mode mixed are of that version.
func old(host string) bool { return host == "h2" || host == "h4" }

// buildOld builds that version, where the history is there to build it from.
func (a *arena) buildOld() {
	a.t.Helper()
	dir := a.t.TempDir()
	a.old = filepath.Join(dir, "pglead-old")
	script := `set -e; cd "$(git rev-parse --show-toplevel)"; git archive "$1" | tar -x -C "$2"; cd "$2"; go build -o "$3" .`
	if err := exec.Command("git", "cat-file", "-e", oldCommit+"^{tree}").Run(); err != nil {
		a.t.Skip("NOT TESTED: old and new versions mixed, since there is no history to build the old one from: ", err)
	}
	if out, err := exec.Command("sh", "-c", script, "sh", oldCommit, dir, a.old).CombinedOutput(); err != nil {
		a.t.Fatalf("build %s: %v: %s", oldCommit, err, out)
	}
}
