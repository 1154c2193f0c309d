package torture

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg"
)

// network is a switch and hosts around it, each a network namespace of its
// own: what they send stays on this machine.
type network struct {
	t      *testing.T
	prefix string
	hosts  map[string]string // name to address
}

func newNetwork(t *testing.T, names ...string) *network {
	t.Helper()
	n := &network{t: t, hosts: map[string]string{}}
	// A run that was killed has left its network behind.
	for i := os.Getpid(); ; i++ {
		n.prefix = fmt.Sprintf("pgt%d", i%100000)
		if _, err := os.Stat("/run/netns/" + n.ns("sw")); err != nil {
			break
		}
	}
	t.Cleanup(n.remove)
	n.run("ip", "netns", "add", n.ns("sw"))
	n.run("ip", "-n", n.ns("sw"), "link", "add", "br0", "type", "bridge")
	n.run("ip", "-n", n.ns("sw"), "link", "set", "br0", "up")
	for i, name := range names {
		address := fmt.Sprintf("10.77.0.%d", i+1)
		n.hosts[name] = address
		ns, port := n.ns(name), "p"+name
		n.run("ip", "netns", "add", ns)
		n.run("ip", "-n", n.ns("sw"), "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns)
		n.run("ip", "-n", n.ns("sw"), "link", "set", port, "master", "br0", "up")
		n.run("ip", "-n", ns, "addr", "add", address+"/24", "dev", "eth0")
		n.run("ip", "-n", ns, "link", "set", "eth0", "up")
		n.run("ip", "-n", ns, "link", "set", "lo", "up")
	}
	return n
}

// admitNetwork has a server trust the hosts of a network.
func admitNetwork(server *localpg.Server) error {
	hba, err := os.OpenFile(filepath.Join(server.Data, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = hba.WriteString("host all,replication all 10.77.0.0/24 trust\n")
	return errors.Join(err, hba.Close())
}

// buildPglead builds the program under test.
func buildPglead(t *testing.T) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "pglead")
	if out, err := exec.Command("go", "build", "-o", binary, "github.com/pglead/pglead").CombinedOutput(); err != nil {
		t.Fatalf("build: %s", out)
	}
	return binary
}

func (n *network) ns(host string) string { return n.prefix + host }

func (n *network) run(args ...string) {
	n.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func (n *network) remove() {
	for name := range n.hosts {
		_ = exec.Command("ip", "netns", "del", n.ns(name)).Run()
	}
	_ = exec.Command("ip", "netns", "del", n.ns("sw")).Run()
}

// on runs f on a thread inside of a host: what f starts is on that host.
func (n *network) on(host string, f func()) {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread is of no use to others and ends with
		// this goroutine. So nothing in f may depend on its parent's thread.
		runtime.LockOSThread()
		ns, err := os.Open("/run/netns/" + n.ns(host))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		n.t.Fatalf("enter %s: %v", host, err)
	}
}

// cut drops what a host receives, sends, or both.
func (n *network) cut(host string, in, out bool) {
	n.t.Helper()
	rules := "table inet cut {\n"
	if in {
		rules += "chain i { type filter hook input priority 0; iifname eth0 drop; }\n"
	}
	if out {
		rules += "chain o { type filter hook output priority 0; oifname eth0 drop; }\n"
	}
	cmd := exec.Command("ip", "netns", "exec", n.ns(host), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules + "}\n")
	if output, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("nft: %v: %s", err, output)
	}
}

// cutFrom drops what two hosts send each other.
func (n *network) cutFrom(host, other string) {
	n.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", n.ns(host), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`table inet cut {
chain i { type filter hook input priority 0; ip saddr %[1]s drop; }
chain o { type filter hook output priority 0; ip daddr %[1]s drop; }
}
`, n.hosts[other]))
	if output, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("nft: %v: %s", err, output)
	}
}

func (n *network) heal(host string) {
	n.t.Helper()
	n.run("ip", "netns", "exec", n.ns(host), "nft", "flush", "ruleset")
}
