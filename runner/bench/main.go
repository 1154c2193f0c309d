//go:build linux

// Command bench measures pglead beside the least that a C program can do and
// beside what people use instead, in turns, on one PostgreSQL, and prints a
// table:
//
//	go run ./runner/bench
//
// It needs gcc, libpq-dev and PostgreSQL's server; etcd and flock take part
// where they are installed, consul where -consul names one. Nothing leaves the
// loopback interface.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/pgtest"
)

type options struct {
	short   bool
	parts   string
	pglead  string
	also    string
	consul  string
	rounds  int
	idle    time.Duration
	waiters int
	nodes   int
	items   int
	svg     string
}

func main() {
	var o options
	flag.BoolVar(&o.short, "short", false, "few rounds of everything, to see that it works")
	flag.StringVar(&o.parts, "parts", strings.Join(names(), ","), "what to measure")
	flag.StringVar(&o.pglead, "pglead", "", "measure this `file`, instead of building one")
	flag.StringVar(&o.also, "also", "", "another build of pglead to measure beside it: a `file`")
	flag.StringVar(&o.consul, "consul", "", "consul's program, a `file`; without it consul lock is left out")
	flag.IntVar(&o.rounds, "rounds", 200, "runs of each contender")
	flag.DurationVar(&o.idle, "idle", time.Minute, "how long to look at idle processes")
	flag.IntVar(&o.waiters, "waiters", 1000, "most waiters on one key, and most holders of one each")
	flag.IntVar(&o.nodes, "nodes", 1000, "nodes that fire at the same instant")
	flag.IntVar(&o.items, "items", 10000, "items for each")
	flag.StringVar(&o.svg, "svg", "", "draw what grows with the number of waiters and of holders into this `file`")
	flag.Parse()
	if o.short {
		o.rounds, o.idle, o.waiters, o.nodes, o.items = 3, time.Second, 10, 20, 20
	}
	if err := measure(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parts are what can be measured, in this order.
func parts() []part {
	return []part{
		{"run", (*bench).uncontended},
		{"refused", (*bench).refused},
		{"trips", (*bench).roundTrips},
		{"handover", (*bench).handover},
		{"killed", (*bench).killed},
		{"idle", (*bench).idle},
		{"each", (*bench).each},
		{"holders", (*bench).holders},
		{"crowd", (*bench).crowd},
		{"herd", (*bench).herd},
		{"size", (*bench).size},
	}
}

type part struct {
	name string
	run  func(*bench) error
}

func names() []string {
	var list []string
	for _, p := range parts() {
		list = append(list, p.name)
	}
	return list
}

// bench is what all parts share.
type bench struct {
	options
	site
	dir   string
	path  string // to the programs built here, and the user's
	goals []goal

	charts []chart
}

// site is a server, and the environments in which programs find it.
type site struct {
	server         *pgtest.Server
	unix, tcp, tls []string
}

// goal is a bound that a figure has to keep.
type goal struct {
	what     string
	measured float64
	most     float64
	unit     string
}

func (b *bench) goal(what string, measured, most float64, unit string) {
	b.goals = append(b.goals, goal{what, measured, most, unit})
}

func measure(o options) error {
	wanted := strings.Split(o.parts, ",")
	for _, name := range wanted {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("-parts: %s is none of %s", name, strings.Join(names(), ", "))
		}
	}
	dir, err := os.MkdirTemp("/tmp", "pglead-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{options: o, dir: dir, path: dir + string(os.PathListSeparator) + os.Getenv("PATH")}
	// What a run leaves behind falls to this process, which counts its time too.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	if err := b.build(); err != nil {
		return err
	}
	var remove func()
	if b.site, remove, err = b.startServer(nil); err != nil {
		return err
	}
	defer remove()
	b.heading()
	for _, p := range parts() {
		if !slices.Contains(wanted, p.name) {
			continue
		}
		if err := p.run(b); err != nil {
			return fmt.Errorf("measure %s: %w", p.name, err)
		}
	}
	b.printGoals()
	if b.svg != "" && len(b.charts) > 0 {
		return os.WriteFile(b.svg, []byte(plot(b.charts)), 0o600)
	}
	return nil
}

func (b *bench) build() error {
	pglead := filepath.Join(b.dir, "pglead")
	if b.pglead == "" {
		b.pglead = pglead
		// Without C's library each of its processes takes 1.5 ms of processor time less.
		if err := command("env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", pglead, "."); err != nil {
			return err
		}
	}
	include, err := exec.Command("pg_config", "--includedir").Output()
	if err != nil {
		return fmt.Errorf("find libpq's header (Debian has it in libpq-dev): %w", err)
	}
	if err := command("cc", "-O2", "-I"+strings.TrimSpace(string(include)), "-o", filepath.Join(b.dir, "floor"), "testdata/bench/floor.c", "-lpq"); err != nil {
		return err
	}
	return command("cc", "-O2", "-static", "-o", filepath.Join(b.dir, "stamp"), "testdata/bench/stamp.c")
}

func command(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func (b *bench) heading() {
	cpu := ""
	info, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(info)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			cpu = strings.TrimSpace(value)
		}
	}
	var uts unix.Utsname
	_ = unix.Uname(&uts)
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("%s, %d processors (%s), Linux %s, PostgreSQL %d, %s, load %s\n",
		time.Now().Format(time.DateOnly), runtime.NumCPU(), cpu, unix.ByteSliceToString(uts.Release[:]),
		b.server.Programs.Major, runtime.Version(), strings.Join(strings.Fields(string(load))[:3], " "))
}

func (b *bench) printGoals() {
	if len(b.goals) == 0 {
		return
	}
	fmt.Print("\n| goal | at most | measured | |\n|---|---|---|---|\n")
	for _, g := range b.goals {
		verdict := "kept"
		if g.measured > g.most {
			verdict = "**missed**"
		}
		fmt.Printf("| %s | %.4g%s | %.3g%s | %s |\n", g.what, g.most, g.unit, g.measured, g.unit, verdict)
	}
}

// size is that of the program as it is shipped.
func (b *bench) size() error {
	info, err := os.Stat(b.pglead)
	if err != nil {
		return err
	}
	b.goal("binary, stripped", float64(info.Size())/(1<<20), 10, " MiB")
	return nil
}

// startServer starts a server that a PostgreSQL user would: its settings are
// the defaults, except that no autovacuum comes between two runs. It can be
// reached in three ways, and is old enough for locks to be taken at once.
func (b *bench) startServer(settings map[string]string) (at site, remove func(), err error) {
	port, err := pgtest.FreePort()
	if err != nil {
		return site{}, nil, err
	}
	all := map[string]string{
		"port": port, "listen_addresses": "127.0.0.1", "autovacuum": "off", "shared_buffers": "128MB", "max_connections": "100",
		"ssl": "on", "ssl_cert_file": "server.crt", "ssl_key_file": "server.key",
	}
	maps.Copy(all, settings)
	s, remove, err := pgtest.Prepare(all)
	if err != nil {
		return site{}, nil, err
	}
	root := filepath.Join(b.dir, "root-"+port+".crt")
	err = s.Init()
	if err == nil {
		err = writeCertificate(s.Data, root)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(s.Data, "pg_hba.conf"), []byte("local all all trust\nhostssl all secret 127.0.0.1/32 scram-sha-256\nhost all pglead 127.0.0.1/32 trust\n"), 0o600)
	}
	if err == nil {
		err = s.StartLogged()
	}
	if err == nil {
		_, err = s.Query("postgres", "CREATE ROLE secret LOGIN PASSWORD 'secret'")
	}
	if err != nil {
		remove()
		return site{}, nil, err
	}
	common := []string{"PATH=" + b.path, "HOME=" + b.dir, "LC_ALL=C", "PGPORT=" + port, "PGDATABASE=postgres", "ETCDCTL_API=3"}
	// A first try waits out the lock-delay on a younger one.
	time.Sleep(11 * time.Second)
	return site{
		server: s,
		unix:   slices.Concat(common, []string{"PGHOST=" + s.Socket, "PGUSER=" + pgtest.Superuser}),
		tcp:    slices.Concat(common, []string{"PGHOST=127.0.0.1", "PGUSER=" + pgtest.Superuser, "PGSSLMODE=disable"}),
		tls:    slices.Concat(common, []string{"PGHOST=127.0.0.1", "PGUSER=secret", "PGPASSWORD=secret", "PGSSLMODE=verify-full", "PGSSLROOTCERT=" + root}),
	}, remove, nil
}
