package torture

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// peer is another way to run a command under a lock.
type peer struct {
	name string
	// command is its command line for a contender, up to the locked command.
	command func(a *arena) []string
	// local: it knows one machine only.
	local bool
}

func peers() []peer {
	return []peer{
		{"flock", func(a *arena) []string { return []string{"flock", filepath.Join(a.dir, "lockfile")} }, true},
		{"psql -c lock -c '\\! command'", func(a *arena) []string {
			return []string{"psql", "-X", "-q", "-h", a.net.hosts["db"], "-U", "pglead", "-d", "postgres", "-c", "SELECT pg_advisory_lock(1)", "-c"}
		}, false},
		{"etcdctl lock --ttl 3", func(a *arena) []string {
			return []string{"etcdctl", "--endpoints=http://" + a.net.hosts["db"] + ":2379", "lock", "--ttl", "3", "torture"}
		}, false},
	}
}

// TestPeers puts the faults that make sense for them to what people use
// instead. It asserts nothing about them: it prints the table for cmd/REFERENCE.md,
// and runs only by hand, TORTURE='-peers -rounds 20'.
func TestPeers(t *testing.T) {
	o := parseOptions()
	if !o.peers {
		t.Skip("NOT RUN: the comparison with peers is made by hand, with TORTURE='-peers -rounds 20'")
	}
	for _, p := range peers() {
		t.Run(p.name, func(t *testing.T) {
			a := newArena(t, o)
			a.startEtcd()
			var rows []string
			for _, fault := range []string{"SIGKILL", "terminate", "partition"} {
				if p.local && fault != "SIGKILL" || fault == "terminate" && !strings.HasPrefix(p.name, "psql") {
					continue
				}
				overlapped, never := 0, 0
				for range o.rounds {
					o, n := a.peerRound(p, fault)
					overlapped, never = overlapped+o, never+n
				}
				rows = append(rows, fmt.Sprintf("| %s | %s | %d of %d overlapped | %d never handed over |", p.name, fault, overlapped, o.rounds, never))
			}
			t.Log("\n" + strings.Join(rows, "\n"))
		})
	}
}

func (a *arena) startEtcd() {
	a.t.Helper()
	url := "http://" + a.net.hosts["db"] + ":2379"
	a.net.on("db", func() {
		cmd := exec.Command("etcd", "--data-dir", a.t.TempDir(), "--listen-client-urls", url, "--advertise-client-urls", url)
		if err := cmd.Start(); err != nil {
			a.t.Error(err)
			return
		}
		a.t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	})
	a.awaitPort("db", "2379")
}

// peerRound lets two contend, strikes the first, and looks whether both ran at
// once, or the second never did.
func (a *arena) peerRound(p peer, fault string) (overlapped, never int) {
	a.t.Helper()
	dir, err := os.MkdirTemp(a.dir, "round")
	if err != nil {
		a.t.Fatal(err)
	}
	seen := newWitnesses(dir)
	var waits sync.WaitGroup
	start := func(host string) *exec.Cmd {
		args := p.command(a)
		if strings.HasPrefix(p.name, "psql") {
			args = append(args, `\! `+a.self)
		} else {
			args = append(args, a.self)
		}
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), roleVariable+"=command", dirVariable+"="+dir, hostVariable+"="+host, "ETCDCTL_API=3")
		a.net.on(host, func() {
			if err := cmd.Start(); err != nil {
				a.t.Error(err)
			}
		})
		waits.Go(func() { _ = cmd.Wait() })
		return cmd
	}
	led := func(n int, within time.Duration) bool {
		for began := uptime(); uptime()-began < within; time.Sleep(5 * time.Millisecond) {
			if h, err := seen.history(0); err == nil && len(h) >= n {
				return true
			}
		}
		return false
	}
	first := start("h1")
	if !led(1, time.Minute) {
		a.t.Fatal("nobody leads")
	}
	second := start("h2")
	time.Sleep(500 * time.Millisecond) // for the second to stand in line
	switch fault {
	case "SIGKILL":
		_ = first.Process.Kill()
	case "terminate":
		a.terminate()
	case "partition":
		a.net.cut("h1", true, true)
	}
	if !led(2, 12*time.Second) {
		never = 1
	}
	time.Sleep(200 * time.Millisecond)
	h, err := seen.history(0)
	if err != nil {
		a.t.Fatal(err)
	}
	if len(h.overlaps()) > 0 {
		overlapped = 1
	}
	// Clear the field, survivors included.
	a.net.heal("h1")
	_, _ = first.Process.Kill(), second.Process.Kill()
	for range 3 { // a command that is killed in its first moments may yet have a daemon
		_ = exec.Command("pkill", "-KILL", "-x", "-f", a.self).Run()
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, file := range files {
			if pid, err := strconv.Atoi(file[strings.LastIndexByte(file, '.')+1:]); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	waits.Wait()
	a.terminate()
	return overlapped, never
}
