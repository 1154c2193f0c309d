package torture

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
)

// TestAddressTakenOver: a holder is cut off, and another host gets its address at once, as with a
// virtual IP or a container that is moved. The kernel there answers whatever the server sends with a
// reset, so the server frees the lock as soon as it sends anything. A first try on that host starts
// at once then, so the server has to send nothing, not even a keep-alive, while the old command may
// be alive.
func TestAddressTakenOver(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: a partition needs root, for network namespaces")
	}
	n := newNetwork(t, "db", "a", "b")
	server, remove, err := localpg.Prepare(map[string]string{"listen_addresses": "*"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	err = errors.Join(server.Init(), admitNetwork(server))
	if err != nil {
		t.Fatal(err)
	}
	n.on("db", func() { err = server.StartLogged() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop(syscall.SIGQUIT) })
	binary := buildPglead(t)
	run := func(host string, script ...string) *exec.Cmd {
		args := append([]string{"netns", "exec", n.ns(host), binary, "run", "--key", "moved", "--lease", "6s", "--lock-delay", "0",
			"--dsn", server.DSN("postgres") + " host=" + n.hosts["db"], "--", "sh", "-c"}, script...)
		return exec.Command("ip", args...)
	}

	holder := run("a", "echo $$; exec sleep 1000")
	out, err := holder.StdoutPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Process.Kill() }()
	var job int
	if _, err := fmt.Fscan(out, &job); err != nil {
		t.Fatal(err)
	}
	n.run("ip", "-n", n.ns("sw"), "link", "set", "pa", "down")
	n.run("ip", "-n", n.ns("b"), "addr", "add", n.hosts["a"]+"/24", "dev", "eth0")
	n.run("ip", "-n", n.ns("db"), "neigh", "flush", "dev", "eth0")

	// The hosts share one table of processes, so the new command sees whether the old one is alive.
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		out, err := run("b", `kill -0 "$1" 2>/dev/null && echo overlap; echo ran`, "sh", fmt.Sprint(job)).CombinedOutput()
		if strings.Contains(string(out), "overlap") {
			t.Errorf("the old command is alive %v after its host was cut off, beside the new one", time.Since(began))
		}
		if bytes.Contains(out, []byte("ran\n")) {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("the lock is not free: %v: %s", err, out)
		}
	}
	_ = holder.Wait()
	if code := holder.ProcessState.ExitCode(); code != 76 {
		t.Errorf("the holder ended with %d, want 76", code)
	}
}
