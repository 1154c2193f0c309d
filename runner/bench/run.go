//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/pgtest"
)

// key is the lock that everything here is about, as a number for those who
// don't know names.
const key = "7"

// numbered has pglead take the key for a number too.
func numbered() []string { return []string{"PGLEAD_KEY_SCHEME=int"} }

// contender is one who takes part in a comparison, and what it came to.
type contender struct {
	name    string
	of      process
	against string // whose multiple it is
	status  int    // that it has to end with
	walls   []time.Duration
	cpus    []time.Duration
	servers []time.Duration
}

// field collects contenders, and leaves out those that aren't installed.
type field struct {
	b    *bench
	list []*contender
}

func (f *field) add(name, against string, env []string, args ...string) *contender {
	of, err := f.b.program(env, args...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: left out:", err)
		return &contender{}
	}
	c := &contender{name: name, of: of, against: against}
	f.list = append(f.list, c)
	return c
}

// addPglead adds pglead and, if there is one, its other build.
func (f *field) addPglead(name, against string, env []string, args ...string) []*contender {
	env = slices.Concat(env, numbered())
	list := []*contender{f.add("**pglead run**"+name, against, env, append([]string{f.b.pglead, "run", "--key", key}, args...)...)}
	if f.b.also != "" {
		list = append(list, f.add("(the other build)"+name, against, env, append([]string{f.b.also, "run", "--key", key}, args...)...))
	}
	return list
}

func (f *field) named(name string) *contender {
	for _, c := range f.list {
		if c.name == name {
			return c
		}
	}
	return &contender{}
}

// race has all run in turns. The first rounds are not counted.
func (f *field) race() error {
	const warmUp = 3
	for round := -warmUp; round < f.b.rounds; round++ {
		for _, c := range f.list {
			s, err := f.b.time(c.of)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if s.status != c.status {
				return fmt.Errorf("%s: exit status %d, not %d", c.name, s.status, c.status)
			}
			if round >= 0 {
				c.walls, c.cpus, c.servers = append(c.walls, s.wall), append(c.cpus, s.cpu), append(c.servers, s.server)
			}
		}
	}
	return nil
}

// against is the multiple of one's time to another's, by name.
func (f *field) against(name, other string) float64 {
	return ratio(f.named(name).walls, f.named(other).walls)
}

// print makes the table. The time at the server is a mean, since its clock
// counts hundredths of a second.
func (f *field) print(title string) {
	fmt.Printf("\n**%s**, %d runs each in turns\n\n| | p50 ms | p99 ms | processor ms | server ms | |\n|---|---|---|---|---|---|\n", title, f.b.rounds)
	for _, c := range f.list {
		multiple := ""
		if c.against != "" {
			multiple = fmt.Sprintf("%.2f × %s", f.against(c.name, c.against), c.against)
		}
		fmt.Printf("| %s | %s | %s | %s | %s | %s |\n", c.name, ms(quantile(c.walls, .5)), ms(quantile(c.walls, .99)),
			ms(quantile(c.cpus, .5)), ms(mean(c.servers)), multiple)
	}
}

// uncontended is a free lock, and a command that does nothing.
func (b *bench) uncontended() error {
	f := &field{b: b}
	for _, way := range []struct {
		name string
		env  []string
	}{{"", b.unix}, {", TCP", b.tcp}, {", TLS and SCRAM", b.tls}} {
		floor := "C and libpq" + way.name
		f.add(floor, "", way.env, "floor", "try", key, "true")
		f.addPglead(way.name, floor, way.env, "--", "true")
		f.add("`psql -c lock -c '\\! true'`"+way.name, floor, way.env, "psql", "-X", "-q", "-c", "select pg_try_advisory_lock("+key+")", "-c", `\! true`)
	}
	f.add("`psql -c 'select pg_try_advisory_lock(1)'`", "C and libpq", b.unix, "psql", "-X", "-q", "-c", "select pg_try_advisory_lock("+key+")")
	f.add("`flock`", "C and libpq", b.unix, "flock", filepath.Join(b.dir, "lockfile"), "true")
	stop, err := b.addEtcd(f, "C and libpq", "true")
	if err != nil {
		return err
	}
	defer stop()
	stopConsul, err := b.addConsul(f, "C and libpq", "true")
	if err != nil {
		return err
	}
	defer stopConsul()
	if err := f.race(); err != nil {
		return err
	}
	f.print("A free lock and `true`")
	b.goal("run against the C floor", f.against("**pglead run**", "C and libpq"), 1.2, " ×")
	b.goal("run against the C floor, TCP", f.against("**pglead run**, TCP", "C and libpq, TCP"), 1.2, " ×")
	b.goal("run against the C floor, TLS and SCRAM", f.against("**pglead run**, TLS and SCRAM", "C and libpq, TLS and SCRAM"), 1.2, " ×")
	b.goal("run against `psql -c lock -c '\\! true'`", f.against("**pglead run**", "`psql -c lock -c '\\! true'`"), .6, " ×")
	if etcd := f.named("`etcdctl lock`"); len(etcd.walls) > 0 {
		b.goal("run against `etcdctl lock`", f.against("**pglead run**", "`etcdctl lock`"), .65, " ×")
	}
	return nil
}

// addEtcd adds etcd's own wrapper, with a server of one node, if both are there.
func (b *bench) addEtcd(f *field, against string, args ...string) (stop func(), err error) {
	if !b.installed("etcd") {
		return func() {}, nil
	}
	client, err := pgtest.FreePort()
	if err != nil {
		return nil, err
	}
	peer, err := pgtest.FreePort()
	if err != nil {
		return nil, err
	}
	url, peerURL := "http://127.0.0.1:"+client, "http://127.0.0.1:"+peer
	stop, err = daemon(client, "etcd", "--data-dir", filepath.Join(b.dir, "etcd"), "--log-level", "error",
		"--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL)
	if err != nil {
		return nil, err
	}
	f.add("`etcdctl lock`", against, b.unix, append([]string{"etcdctl", "--endpoints=" + url, "lock", "bench"}, args...)...)
	return stop, nil
}

// addConsul adds consul's wrapper, with an agent for development.
func (b *bench) addConsul(f *field, against string, args ...string) (stop func(), err error) {
	if b.consul == "" {
		return func() {}, nil
	}
	stop, err = daemon("8500", b.consul, "agent", "-dev", "-log-level=err", "-bind=127.0.0.1")
	if err != nil {
		return nil, err
	}
	f.add("`consul lock`", against, b.unix, append([]string{b.consul, "lock", "-shell=false", "bench"}, args...)...)
	return stop, nil
}

// daemon starts a server and waits until it listens.
func daemon(port, name string, args ...string) (stop func(), err error) {
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for range 200 {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
			time.Sleep(2 * time.Second) // the election of the only node
			return stop, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	stop()
	return nil, fmt.Errorf("%s never listens", name)
}

// refused is a lock that somebody else holds.
func (b *bench) refused() error {
	ctx := context.Background()
	conn, err := pgconn.Connect(ctx, b.server.DSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock("+key+")").ReadAll(); err != nil {
		return err
	}
	f := &field{b: b}
	f.add("C and libpq", "", b.unix, "floor", "try", key, "true").status = 75
	for _, c := range append(f.addPglead("", "C and libpq", b.unix, "--wait", "0", "--", "true"), f.addPglead(" -q", "C and libpq", b.unix, "-q", "--wait", "0", "--", "true")...) {
		c.status, c.of.quiet = 75, true
	}
	f.add("`psql -c 'select pg_try_advisory_lock(1)'`", "C and libpq", b.unix, "psql", "-X", "-q", "-c", "select pg_try_advisory_lock("+key+")")
	held, err := os.Create(filepath.Join(b.dir, "lockfile"))
	if err != nil {
		return err
	}
	defer held.Close()
	holder, err := b.program(b.unix, "flock", "-n", held.Name(), "sleep", "1000")
	if err == nil {
		sleeper, err := holder.start(nil, nil)
		if err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
		defer func() {
			for _, pid := range children(sleeper.Pid) {
				if child, err := os.FindProcess(pid); err == nil {
					_ = child.Kill()
				}
			}
			_, _ = sleeper.Wait()
		}()
		f.add("`flock -n`", "C and libpq", b.unix, "flock", "-n", held.Name(), "true").status = 1
	}
	if err := f.race(); err != nil {
		return err
	}
	f.print("A lock that is held elsewhere, `--wait 0`")
	b.goal("refused against the C floor", f.against("**pglead run**", "C and libpq"), 1.25, " ×")
	b.goal("refused, -q, against the C floor", f.against("**pglead run** -q", "C and libpq"), 1.25, " ×")
	return nil
}

// roundTrips are counted on the wire, by a relay before the server.
func (b *bench) roundTrips() error {
	dir, err := os.MkdirTemp(b.dir, "relay")
	if err != nil {
		return err
	}
	socket := ".s.PGSQL." + b.server.Settings["port"]
	r, err := listen(filepath.Join(dir, socket), filepath.Join(b.server.Socket, socket))
	if err != nil {
		return err
	}
	defer r.Close()
	env := slices.DeleteFunc(slices.Clone(b.unix), func(e string) bool { return strings.HasPrefix(e, "PGHOST=") })
	env = append(env, "PGHOST="+dir)
	f := &field{b: b}
	f.add("C and libpq", "", env, "floor", "try", key, "true")
	f.addPglead("", "", env, "--", "true")
	f.add("`psql -c lock -c '\\! true'`", "", env, "psql", "-X", "-q", "-c", "select pg_try_advisory_lock("+key+")", "-c", `\! true`)
	fmt.Print("\n**On the wire** between login and goodbye\n\n| | round trips | messages there | messages back | bytes there | bytes back |\n|---|---|---|---|---|---|\n")
	for _, c := range f.list {
		if _, err := b.time(c.of); err != nil {
			return err
		}
		n := r.next()
		fmt.Printf("| %s | %d | %d | %d | %d | %d |\n", c.name, n.trips, n.there, n.back, n.bytesThere, n.bytesBack)
		if c.name == "**pglead run**" {
			b.goal("round trips after the login", float64(n.trips), 3, "")
		}
	}
	return nil
}
