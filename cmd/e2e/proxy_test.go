package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/localpg"
)

// proxy passes connections on to the shared server, as HAProxy does: when nothing
// has come from either side for a while it ends both.
type proxy struct {
	dsn  string
	idle time.Duration
	// cut off are the clients: nothing of theirs arrives, and nothing ends.
	cut atomic.Bool
	// questions, if not 0, is how many questions of a client arrive; then it is cut off.
	questions atomic.Int32
}

func newProxy(t *testing.T, idle time.Duration) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p := &proxy{dsn: fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres sslmode=disable", port, localpg.Superuser), idle: idle}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.pass(client)
		}
	}()
	return p
}

func (p *proxy) pass(client net.Conn) {
	server, err := net.Dial("unix", filepath.Join(testbed.server.Socket, ".s.PGSQL.5432"))
	if err != nil {
		_ = client.Close()
		return
	}
	idle := time.AfterFunc(p.idle, func() { _ = server.Close() })
	copyTo := func(to, from net.Conn) {
		buf := make([]byte, 64<<10)
		for asked := int32(0); ; {
			n, err := from.Read(buf)
			if from == client && n > 0 && buf[0] == 'Q' {
				asked++
			}
			if q := p.questions.Load(); p.cut.Load() || q > 0 && asked > q { // the packet is lost
				return
			}
			idle.Reset(p.idle)
			if _, writeErr := to.Write(buf[:n]); err != nil || writeErr != nil {
				_ = to.Close()
				return
			}
		}
	}
	go copyTo(server, client)
	copyTo(client, server)
}

// TestIdleProxy: a proxy that ends silent connections frees the lock of a holder
// that is cut off from it. That the command is dead by then is promised where the
// proxy's time is as long as the lease.
func TestIdleProxy(t *testing.T) {
	t.Parallel() // it has keys of its own
	for _, tt := range []struct {
		idle, lease time.Duration
		alive       bool
	}{
		// Which doctor finds: see below. It lasts from the proxy's time to the holder's share of
		// the lease: seven seconds, of which a busy machine may take most for the look at the
		// locks.
		{5 * time.Second, 20 * time.Second, true},
		{6 * time.Second, 6 * time.Second, false},
	} {
		t.Run(tt.idle.String(), func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, tt.idle)
			key := "proxied " + tt.idle.String()
			cmd := command(t, "run", "--dsn", p.dsn, "--key", key, "--lease", tt.lease.String(), "--", "sh", "-c", "echo $$; exec sleep 1000")
			line, _ := start(t, cmd)
			pid, err := strconv.Atoi(line)
			if err != nil {
				t.Fatal(err)
			}
			p.cut.Store(true)
			if !eventually(func() bool { return testbed.holders(key) == 0 }) {
				t.Fatal("the lock stays held")
			}
			if alive := !errors.Is(unix.Kill(pid, 0), unix.ESRCH); alive != tt.alive {
				t.Errorf("when the lock is free the command's life is %v, want %v", alive, tt.alive)
			}
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 76 {
				t.Error(err)
			}
		})
	}
}

// TestDoctorIdle: doctor finds such a proxy when it is asked to.
func TestDoctorIdle(t *testing.T) {
	for name, tt := range map[string]struct {
		idle         time.Duration
		exit         int
		status       checkup.Status
		seen, advice string
	}{
		"shorter than the lease": {
			time.Second, 78, checkup.Fail,
			`^a connection ended when it had been silent for 1(\.\d)?s \(the server closed the connection\), within the lease of 3s: a holder whose host is cut off loses the lock before its command is dead, and whoever comes then starts at once$`,
			"have what is in between keep silent connections for longer than the lease (HAProxy: timeout tunnel, or both timeout client and timeout server), go a way round it, or give all nodes a shorter --lease",
		},
		"longer than the lease": {
			5 * time.Second, 0, checkup.OK, `^a connection that was silent for 3s still answers$`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, tt.idle)
			cmd := command(t, "doctor", "--dsn", p.dsn, "--lease", "3s", "--idle", "-o", "json")
			var said strings.Builder
			cmd.Stderr = &said
			out, _ := cmd.Output()
			if cmd.ProcessState.ExitCode() != tt.exit || said.String() != "" {
				t.Errorf("exit status %d, want %d; %s", cmd.ProcessState.ExitCode(), tt.exit, said.String())
			}
			var found struct{ Database []checkup.Check }
			if err := json.Unmarshal(out, &found); err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(found.Database, func(c checkup.Check) bool { return c.Name == "silence" })
			if i < 0 {
				t.Fatalf("nothing about silence in %s", out)
			}
			if c := found.Database[i]; c.Status != tt.status || !regexp.MustCompile(tt.seen).MatchString(c.Seen) || c.Advice != tt.advice {
				t.Errorf("%+v", c)
			}
		})
	}
}
