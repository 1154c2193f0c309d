package torture

import (
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// startRelay starts the relay on its host.
func (a *arena) startRelay() {
	a.t.Helper()
	a.net.on(relayHost, func() {
		a.relay = exec.Command("/proc/self/exe", ":5432", a.net.hosts["db"]+":5432", a.lease.String())
		a.relay.Env = append(os.Environ(), roleVariable+"=relay")
		if err := a.relay.Start(); err != nil {
			a.t.Error(err)
			return
		}
		a.t.Cleanup(func() {
			_ = a.relay.Process.Kill()
			_ = a.relay.Wait()
		})
	})
}

// relay passes TCP connections on, as a proxy or a tunnel does: it keeps its
// side to the server open, whatever becomes of the client. On SIGUSR1 it gets an
// idle time-out, as HAProxy has: a connection on which nothing comes from either
// side for so long is ended on both. On SIGUSR2 it has none again.
func relay(listen, server, idle string) {
	most, err := time.ParseDuration(idle)
	if err != nil {
		panic(err)
	}
	var strict atomic.Bool
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGUSR1, unix.SIGUSR2)
	go func() {
		for sig := range told {
			strict.Store(sig == unix.SIGUSR1)
		}
	}()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		panic(err)
	}
	for {
		client, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			defer client.Close()
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				return
			}
			defer upstream.Close()
			c := &relayed{}
			c.heard()
			ended := make(chan struct{})
			defer close(ended)
			go func() {
				tick := time.NewTicker(most / 50)
				defer tick.Stop()
				for {
					select {
					case <-ended:
						return
					case <-tick.C:
						if strict.Load() && c.silentFor() >= most {
							_ = client.Close()
							_ = upstream.Close()
						}
					}
				}
			}()
			go func() {
				_, _ = io.Copy(client, c.of(upstream))
				_ = client.Close()
			}()
			_, _ = io.Copy(upstream, c.of(client))
		}()
	}
}

// relayed is a connection that is passed on.
type relayed struct{ last atomic.Int64 }

func (c *relayed) heard() { c.last.Store(time.Now().UnixNano()) }
func (c *relayed) silentFor() time.Duration {
	return time.Duration(time.Now().UnixNano() - c.last.Load())
}

// of is one side of it, as far as it is read.
func (c *relayed) of(side io.Reader) io.Reader { return relayedSide{side, c} }

type relayedSide struct {
	io.Reader
	c *relayed
}

func (s relayedSide) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.c.heard()
	return n, err
}

// lose drops a quarter of what a host receives.
func (n *network) lose(host string) {
	n.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", n.ns(host), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(`table inet lossy {
chain i { type filter hook input priority 0; numgen random mod 4 == 0 drop; }
}
`)
	if output, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("nft: %v: %s", err, output)
	}
}

// lossyProxy: the relay loses packets and ends connections that are silent for a
// lease, which is the least that cmd/REFERENCE.md allows, and then the holder's host is cut
// off from it.
func lossyProxy(a *arena) fault {
	return fault{
		name: "host behind a lossy relay with an idle time-out vanishes", unseats: true,
		within:  a.bound() + a.lease, // a connection may hang in retransmissions before it is silent
		strikes: func(host string) bool { return host == proxied },
		strike: func(a *arena, l leader) {
			_ = a.relay.Process.Signal(unix.SIGUSR1)
			a.net.lose(relayHost)
			time.Sleep(a.lease / 2)
			a.net.cut(l.host, true, true)
		},
		mend: func(a *arena, l leader) {
			_ = a.relay.Process.Signal(unix.SIGUSR2)
			a.net.heal(relayHost)
			a.net.heal(l.host)
		},
	}
}
