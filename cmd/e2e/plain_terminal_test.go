package e2e

import (
	"io"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// TestPlainTerminals: a terminal that gives no size has the usual one, and one that obeys no
// escape sequences gets lines, and nothing that overwrites.
func TestPlainTerminals(t *testing.T) {
	racesNothing(t)
	holder := command(t, "run", "--key", "plain", "--", "sh", "-c", "echo held; read x")
	_, release := start(t, holder)
	t.Cleanup(func() { release(); _ = holder.Wait() })
	shows := func(env string, args ...string) string {
		t.Helper()
		cmd := command(t, args...)
		cmd.Env = append(cmd.Env, env)
		file, err := pty.Start(cmd) // 0 rows, 0 columns
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		shown, _ := io.ReadAll(file) // it fails at the end with EIO
		_ = cmd.Wait()
		return string(shown)
	}
	wait := []string{"run", "--key", "plain", "--wait", "1.5", "--", "true"}
	const end = `pglead: plain: the lock in .* was held elsewhere for all of the 1.5s that --wait allows: by .*\r\n`
	shown := shows("TERM=xterm", wait...)
	if line, _, _ := strings.Cut(shown, "\x1b[K"); !strings.HasPrefix(line, "\rpglead: plain: waiting; held by ") || len(line) < 60 {
		t.Errorf("without a size it shows %q", shown)
	}
	says(t, shows("TERM=dumb", wait...), `pglead: plain: waiting; held by .*\r\n`+end)
	says(t, shows("TERM=dumb", append([]string{"run", "-q"}, wait[1:]...)...), "")
	if help := shows("TERM=xterm", "run", "--help"); !strings.Contains(help, "name, as for psql; or embedded, a private") {
		t.Errorf("without a size, help is %s", help)
	}
}
