package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg"
)

// contest is one lock of the cluster's, and the way to the cluster by which hosts
// contend for it. Its history is an arena's.
type contest struct {
	*arena
	cluster  *cluster
	key      string
	jobs     string // directory of what the jobs write down
	ended    sync.WaitGroup
	struck   leader // by the last fault
	events   []event
	overlaps []overlap
}

// role is the database's for pglead and jobs: README asks for LOGIN and CONNECT.
const role = "cron"

// newcomerHost is that of those who try once.
const newcomerHost = "c4"

func contestants() []string { return []string{"c1", "c2", "c3", newcomerHost} }

// newContests are of those who find the primary by themselves, and of those who
// leave that to HAProxy.
func newContests(c *cluster, binary, self string) []*contest {
	ways := []struct{ name, dsn string }{
		{"direct", "host=" + c.each("ADDRESS") + " target_session_attrs=read-write"},
		{"haproxy", "host=" + c.net.hosts[proxyHost]},
	}
	var all []*contest
	for _, way := range ways {
		a := &arena{
			options: options{lease: c.lease, lockDelay: c.lockDelay, modeName: way.name, logs: c.logs},
			t:       c.t, net: c.net, binary: binary, self: self, dir: memoryDir(c.t), rand: rand.New(rand.NewPCG(c.seed, 0)),
			dsn:  way.dsn + " connect_timeout=2 dbname=postgres user=" + role,
			pids: map[string]int{},
		}
		a.seen = newWitnesses(a.dir)
		if c.quorum {
			a.flags = []string{"--quorum"}
		}
		all = append(all, &contest{arena: a, cluster: c, key: "patroni-" + way.name, jobs: c.t.TempDir()})
	}
	return all
}

// candidate is a way of contending: a pglead that ends with any other status than
// these has failed, and its heir comes after the pause.
type candidate struct {
	args  []string
	exits []int
	pause time.Duration
}

// candidateOn mixes those who stand for election for ever, who wait for their turn,
// and one who comes by again and again, as cron's jobs do.
func (x *contest) candidateOn(host string) candidate {
	const away, conflict, lost, unsafe = 69, 75, 76, 78
	switch {
	case host == newcomerHost:
		return candidate{[]string{"run"}, []int{away, conflict, lost, unsafe}, 3 * time.Second}
	case (x.modeName == "direct") == (host == "c1"):
		return candidate{[]string{"lead", "--first-delay", "0"}, nil, 0}
	}
	return candidate{[]string{"run", "--wait", "forever"}, []int{lost}, 0}
}

// contend keeps a pglead running on a host until the contest is over.
func (x *contest) contend(host string) {
	cand := x.candidateOn(host)
	args := slices.Concat(cand.args, []string{"--key", x.key, "--lease", x.lease.String(), "--lock-delay", x.lockDelay.String(), "--connect-timeout", "2s"},
		x.flags, []string{"--", x.self})
	x.ended.Go(func() {
		for {
			cmd, err := x.begin(host, args)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if err != nil {
				x.t.Error(err)
				return
			}
			err = cmd.Wait()
			x.mu.Lock()
			delete(x.pids, host)
			if !x.stopping && !slices.Contains(cand.exits, cmd.ProcessState.ExitCode()) {
				x.t.Errorf("%s on %s ended by itself: %v: %s", strings.Join(cand.args, " "), host, err, x.lastSaid(host, 3))
			}
			x.mu.Unlock()
			time.Sleep(rand.N(cand.pause + 1))
		}
	})
}

// begin starts a pglead, unless the contest is over.
func (x *contest) begin(host string, args []string) (*exec.Cmd, error) {
	log, err := os.OpenFile(x.logOf(host), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(x.binary, args...)
	cmd.Env = append(os.Environ(), "PGLEAD_DSN="+x.dsn, "PGLEAD_VERBOSE=true", "PGLEAD_LOG_FORMAT=json",
		roleVariable+"=job", dirVariable+"="+x.dir, hostVariable+"="+host, jobDSNVariable+"="+x.dsn, jobDirVariable+"="+x.jobs)
	cmd.Stderr = log
	x.net.on(host, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.stopping {
			err = os.ErrClosed
			return
		}
		if err = cmd.Start(); err == nil {
			x.pids[host] = cmd.Process.Pid
		}
	})
	return cmd, err
}

func (x *contest) logOf(host string) string {
	return filepath.Join(x.logs, host+"."+x.modeName+".log")
}

func (x *contest) lastSaid(host string, lines int) string {
	data, err := os.ReadFile(x.logOf(host))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// over ends the contenders, and waits for them.
func (x *contest) over() {
	x.mu.Lock()
	x.stopping = true
	for _, pid := range x.pids {
		_ = unix.Kill(pid, unix.SIGKILL) // the guards do the rest
	}
	x.mu.Unlock()
	x.ended.Wait()
}

// leads is who leads, unless nobody does, or does yet.
func (x *contest) leads() (leader, bool) {
	l, err := x.leader(nil)
	return l, err == nil
}

// ledAnew says whether somebody leads whom the fault didn't strike.
func (x *contest) ledAnew() bool {
	l, leads := x.leads()
	return leads && l.token != x.struck.token
}

// inLine says whether the pgleads of all those who stay have at least tried.
func (x *contest) inLine() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(contestants(), func(host string) bool {
		_, err := guardOf(x.pids[host])
		return err != nil && host != newcomerHost
	})
}

// lines are what the jobs have written, in the order of n.
func (x *contest) lines() ([]line, error) {
	values, err := x.cluster.query("SELECT n, token, seq FROM lines WHERE key = '" + x.key + "' ORDER BY n")
	if err != nil {
		return nil, err
	}
	var all []line
	for i := 0; i+2 < len(values); i += 3 {
		var l line
		for j, number := range []*int64{&l.n, &l.token, &l.seq} {
			if *number, err = strconv.ParseInt(values[i+j], 10, 64); err != nil {
				return nil, err
			}
		}
		all = append(all, l)
	}
	return all, nil
}

// query runs SQL on the primary, as the operator.
func (c *cluster) query(sql string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg, err := pgconn.ParseConfig(fmt.Sprintf("host=%s target_session_attrs=read-write dbname=postgres user=postgres", c.each("ADDRESS")))
	if err != nil {
		return nil, err
	}
	cfg.DialFunc = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		c.net.on(operatorHost, func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
		return conn, err
	}
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer closeSoon(conn)
	return localpg.Ask(ctx, conn, sql)
}
