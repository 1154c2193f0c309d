package testserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
)

// Clock gives a server that is not started yet a clock that can be set to so many
// seconds from the true time. It returns nil where there is no C compiler, except in CI.
func Clock(t *testing.T, server *localpg.Server) (set func(seconds int)) {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	source := filepath.Join(filepath.Dir(here), "../../../testdata/clockshim/clockshim.c")
	shim, clock := filepath.Join(server.Socket, "clockshim.so"), filepath.Join(server.Socket, "clock")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", shim, source).CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v: %s", err, out)
		}
		t.Log("NOT TESTED: a server's clock that is set, since there is no C compiler: ", err)
		return nil
	}
	server.Env = []string{"LD_PRELOAD=" + shim, "CLOCKSHIM=" + clock}
	set = func(seconds int) {
		t.Helper()
		// Renamed, so that nobody reads half a file.
		err := os.WriteFile(clock+".new", []byte(strconv.Itoa(seconds)), 0o644) //nolint:gosec // the server, of another account, reads it
		if err == nil {
			err = os.Rename(clock+".new", clock)
		}
		if err != nil {
			t.Error(err)
		}
	}
	set(0)
	return set
}
