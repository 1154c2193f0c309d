package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg"
)

// cluster is three database hosts, each with etcd, Patroni and PostgreSQL, and a
// host with HAProxy before them. Settings that matter are those of the recipes.
type cluster struct {
	patroniOptions
	t        *testing.T
	net      *network
	dir      string // of a directory for each host, the account's
	account  *syscall.Credential
	programs localpg.Programs
	rest     *http.Client // from the operator's host

	running sync.WaitGroup // what was started
}

// Hosts beside those of the contenders.
const (
	proxyHost    = "px"
	operatorHost = "op"
)

func databaseHosts() []string { return []string{"d1", "d2", "d3"} }

// newCluster starts all of it and returns when the cluster is whole.
func newCluster(t *testing.T, o patroniOptions, n *network) *cluster {
	t.Helper()
	c := &cluster{patroniOptions: o, t: t, net: n}
	var err error
	if c.dir, err = os.MkdirTemp("/tmp", "patroni"); err != nil { // a socket's path may not be long
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(c.dir) })
	if err = os.Chmod(c.dir, 0o711); err != nil { // the account passes through
		t.Fatal(err)
	}
	if c.account, err = localpg.Account(); err != nil {
		t.Fatal(err)
	}
	if c.programs, err = localpg.FindPrograms(); err != nil {
		t.Fatal(err)
	}
	c.rest = &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			n.on(operatorHost, func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
			return conn, err
		},
	}}
	t.Cleanup(c.stop)
	for _, host := range databaseHosts() {
		if err := localpg.MakeDir(c.of(host)); err != nil {
			t.Fatal(err)
		}
		if err := localpg.MakeDir(c.of(host, "socket")); err != nil {
			t.Fatal(err)
		}
		c.startEtcd(host)
	}
	for _, host := range databaseHosts() {
		c.startPatroni(host)
	}
	c.startProxy()
	c.await("the cluster is whole", 2*time.Minute, c.whole)
	return c
}

// of is a file of a host's.
func (c *cluster) of(host string, name ...string) string {
	return filepath.Join(append([]string{c.dir, host}, name...)...)
}

// each joins what is said of each database host.
func (c *cluster) each(format string) string {
	var all []string
	for _, host := range databaseHosts() {
		all = append(all, strings.NewReplacer("HOST", host, "ADDRESS", c.net.hosts[host]).Replace(format))
	}
	return strings.Join(all, ",")
}

// start runs a program on a host, as the account, with a log that goes on.
func (c *cluster) start(host, program string, args ...string) {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.logs, host+"."+program+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, c.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.account, Setpgid: true}
	c.net.on(host, func() { err = cmd.Start() })
	if err != nil {
		c.t.Fatal(err)
	}
	c.running.Go(func() { _ = cmd.Wait() })
}

// startEtcd starts etcd, with what it knows if it ran before.
func (c *cluster) startEtcd(host string) {
	c.t.Helper()
	clients, peers := "http://"+c.net.hosts[host]+":2379", "http://"+c.net.hosts[host]+":2380"
	c.start(host, "etcd", "--enable-v2", "--name", host, "--data-dir", c.of(host, "etcd"),
		"--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
		"--initial-cluster", c.each("HOST=http://ADDRESS:2380"))
}

// startPatroni starts Patroni, which starts PostgreSQL.
func (c *cluster) startPatroni(host string) {
	c.t.Helper()
	synchronous := recipe(c.t, "Patroni", "yaml")
	if !c.strict {
		synchronous = strings.Replace(synchronous, "strict: true", "strict: false", 1)
	}
	file := c.of(host, "patroni.yml")
	err := os.WriteFile(file, []byte(strings.NewReplacer(
		"HOST", host, "ADDRESS", c.net.hosts[host], "ETCD", c.each("ADDRESS:2379"), "DIRECTORY", c.of(host), "PROGRAMS", c.programs.Dir,
		"TTL", strconv.Itoa(c.ttl), "LOOP", strconv.Itoa(c.loop), "RETRY", strconv.Itoa(c.retry),
		"SYNCHRONOUS", strings.ReplaceAll(strings.TrimSpace(synchronous), "\n", "\n    "),
	).Replace(patroniSettings)), 0o644)
	if err != nil {
		c.t.Fatal(err)
	}
	c.start(host, "patroni", file)
}

const patroniSettings = `scope: torture
name: HOST
restapi: {listen: 'ADDRESS:8008', connect_address: 'ADDRESS:8008'}
etcd: {hosts: 'ETCD'}
bootstrap:
  dcs:
    ttl: TTL
    loop_wait: LOOP
    retry_timeout: RETRY
    SYNCHRONOUS
    postgresql:
      use_pg_rewind: true
  initdb: [{encoding: UTF8}, {locale: C}, data-checksums, {auth-host: trust}, {auth-local: trust}]
  pg_hba: ['local all all trust', 'host all,replication all 10.77.0.0/24 trust']
postgresql:
  listen: 'ADDRESS:5432'
  connect_address: 'ADDRESS:5432'
  use_unix_socket: true
  data_dir: DIRECTORY/data
  bin_dir: PROGRAMS
  pgpass: DIRECTORY/pgpass
  parameters: {unix_socket_directories: DIRECTORY/socket}
  authentication: {superuser: {username: postgres}, replication: {username: postgres}, rewind: {username: postgres}}
`

// startProxy starts HAProxy with the recipe's settings.
func (c *cluster) startProxy() {
	c.t.Helper()
	settings := recipe(c.t, "HAProxy, and other proxies", "haproxy")
	for host, name := range map[string]string{"d1": "a.example", "d2": "b.example", "d3": "c.example"} {
		settings = strings.ReplaceAll(settings, name, c.net.hosts[host])
	}
	file := filepath.Join(c.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(settings), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.start(proxyHost, "haproxy", "-db", "-f", file)
}

// recipe is a block of the recipes, which so are what is tested.
func recipe(t *testing.T, heading, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../cmd/RECIPES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	_, block, begun := strings.Cut(section, "```"+language+"\n")
	block, _, ended := strings.Cut(block, "```")
	if !found || !begun || !ended {
		t.Fatalf("the recipes have no block of %s under %q", language, heading)
	}
	return block
}

// stop kills all that runs on the hosts of the cluster.
func (c *cluster) stop() {
	for _, host := range append(databaseHosts(), proxyHost) {
		for _, program := range []string{"patroni", "postgres", "etcd", "haproxy"} {
			c.signal(host, program, unix.SIGKILL)
		}
	}
	c.running.Wait()
}

// signal reaches all processes of a program on a host.
func (c *cluster) signal(host, program string, sig unix.Signal) {
	out, err := exec.Command("ip", "netns", "pids", c.net.ns(host)).Output()
	if err != nil {
		c.t.Error(err)
	}
	for _, field := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(field); err == nil && runs(pid, program) {
			_ = unix.Kill(pid, sig)
		}
	}
}

func runs(pid int, program string) bool {
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && strings.TrimSpace(string(name)) == program
}

// killPostmaster kills the first process of a host's PostgreSQL alone.
func (c *cluster) killPostmaster(host string) {
	c.t.Helper()
	data, err := os.ReadFile(c.of(host, "data", "postmaster.pid"))
	if err != nil {
		c.t.Error(err)
		return
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	if pid, err := strconv.Atoi(string(line)); err != nil || !runs(pid, "postgres") || unix.Kill(pid, unix.SIGKILL) != nil {
		c.t.Errorf("no postmaster on %s: %s", host, line)
	}
}

// ask is a request to Patroni's interface on a host.
func (c *cluster) ask(method, host, path, body string) (status int, answer []byte, err error) {
	request, err := http.NewRequest(method, "http://"+c.net.hosts[host]+":8008"+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	response, err := c.rest.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// member is what Patroni says of a host.
type member struct {
	Name, Role, State string
	Timeline          int
	Lag               any
}

// says is what a host's Patroni says of all.
func (c *cluster) says(host string) []member {
	status, answer, err := c.ask(http.MethodGet, host, "/cluster", "")
	var said struct{ Members []member }
	if err != nil || status != http.StatusOK || json.Unmarshal(answer, &said) != nil {
		return nil
	}
	return said.Members
}

// members are what any Patroni says that answers.
func (c *cluster) members() []member {
	for _, host := range databaseHosts() {
		if members := c.says(host); len(members) > 0 {
			return members
		}
	}
	return nil
}

// inRole is the first host that has a role.
func (c *cluster) inRole(role string) string {
	for _, m := range c.members() {
		if m.Role == role && m.State == "running" {
			return m.Name
		}
	}
	return ""
}

// whole says whether there is a primary that two standbys follow, one of them
// synchronous, as Patroni sees it on all three hosts: one that comes back has old
// news.
func (c *cluster) whole() bool {
	var agreed []string
	for _, host := range databaseHosts() {
		members := c.says(host)
		roles := map[string]string{}
		for _, m := range members {
			lag, known := m.Lag.(float64)
			if m.State != "running" || m.Timeline != members[0].Timeline || m.Role != "leader" && (!known || lag > 1<<20) {
				return false
			}
			roles[m.Role] = m.Name
		}
		view := []string{roles["leader"], roles["sync_standby"], roles["replica"]}
		if slices.Contains(view, "") || agreed != nil && !slices.Equal(view, agreed) {
			return false
		}
		agreed = view
	}
	return len(c.followers()) == 2
}

// followers are the standbys that stream from the primary. One that doesn't, since it
// is ahead, has no lag for Patroni.
func (c *cluster) followers() []string {
	hosts, err := c.query("SELECT application_name FROM pg_stat_replication WHERE state = 'streaming'")
	if err != nil {
		return nil
	}
	return hosts
}

// recover waits until the cluster is whole. Where Patroni does not manage that, it
// does what an operator would, who throws away the standbys that don't follow.
func (c *cluster) recover() {
	c.t.Helper()
	if holds(notice, c.whole) {
		return
	}
	primary, followers := c.inRole("leader"), c.followers()
	for _, host := range databaseHosts() {
		if primary == "" || host == primary || slices.Contains(followers, host) {
			continue
		}
		c.t.Logf("%s has to be made anew: %v", host, c.members())
		c.signalBoth(host, unix.SIGKILL)
		if err := os.RemoveAll(c.of(host, "data")); err != nil {
			c.t.Error(err)
		}
		c.startPatroni(host)
	}
	c.await("the cluster is whole", notice, c.whole)
}

// primaries are the hosts whose Patroni says that theirs is the primary, as
// HAProxy asks.
func (c *cluster) primaries() []string {
	var found []string
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, host := range databaseHosts() {
		asked.Go(func() {
			if status, _, err := c.ask(http.MethodOptions, host, "/primary", ""); err == nil && status == http.StatusOK {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, host)
			}
		})
	}
	asked.Wait()
	return found
}

// succeeded says whether another than the former primary is one.
func (c *cluster) succeeded(former string) bool {
	return slices.ContainsFunc(c.primaries(), func(host string) bool { return host != former })
}

// await waits for a condition, without which the test can't go on.
func (c *cluster) await(what string, within time.Duration, condition func() bool) {
	c.t.Helper()
	if !holds(within, condition) {
		c.t.Fatalf("waited in vain for %v: %s\n%+v", within, what, c.members())
	}
}

// holds says whether a condition comes true in time.
func holds(within time.Duration, condition func() bool) bool {
	for began := time.Now(); time.Since(began) < within; time.Sleep(50 * time.Millisecond) {
		if condition() {
			return true
		}
	}
	return false
}
