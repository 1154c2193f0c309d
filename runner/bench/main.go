//go:build linux

// Command bench compares pglead with the least that a C program can do and
// with what people use instead, in turns, on one PostgreSQL, and prints a
// table:
//
//	go run ./runner/bench
//
// It needs gcc, libpq-dev and PostgreSQL's server; PgBouncer, etcd and flock take
// part where they are installed, consul where -consul names one. Nothing leaves the
// loopback interface.
package main

import (
	"errors"
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

	"github.com/pglead/pglead/runner/localpg"
)

type options struct {
	short   bool
	only    string
	pglead  string
	also    string
	consul  string
	rounds  int
	idle    time.Duration
	waiters int
	nodes   int
	items   int
	svg     string
	json    string
}

func main() {
	var o options
	flag.BoolVar(&o.short, "short", false, "few rounds of everything, to see that it works")
	flag.StringVar(&o.only, "only", "all", "what to measure, as `names` with commas: "+listed())
	flag.StringVar(&o.pglead, "pglead", "", "measure this `file`, instead of building one")
	flag.StringVar(&o.also, "also", "", "another build of pglead to measure beside it: a `file`")
	flag.StringVar(&o.consul, "consul", "", "consul's program, a `file`; without it consul lock is left out")
	flag.IntVar(&o.rounds, "rounds", 200, "runs of each contender")
	flag.DurationVar(&o.idle, "idle", time.Minute, "how long to look at idle processes")
	flag.IntVar(&o.waiters, "waiters", 1000, "most waiters on one key, and most holders of one each")
	flag.IntVar(&o.nodes, "nodes", 1000, "nodes that fire at the same instant")
	flag.IntVar(&o.items, "items", 5000, "items for each")
	flag.StringVar(&o.svg, "svg", "", "draw what grows with the number of waiters and of holders into this `file`")
	flag.StringVar(&o.json, "json", "", "add each goal to this `file` at the end of its part, as a line of JSON")
	flag.Parse()
	if o.short {
		o.rounds, o.idle, o.waiters, o.nodes, o.items = 3, time.Second, 10, 20, 20
	}
	if err := measure(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parts are all that can be measured, in this order.
func parts() []part {
	return []part{
		{"pglead", "run", (*bench).uncontended},
		{"pglead", "refused", (*bench).refused},
		{"pglead", "trips", (*bench).roundTrips},
		{"pglead", "handover", (*bench).handover},
		{"pglead", "killed", (*bench).killed},
		{"pglead", "idle", (*bench).idle},
		{"pglead", "each", (*bench).each},
		{"pglead", "pooler", (*bench).pooler},
		{"pglead", "ledger", (*bench).ledger},
		{"pglead", "ledgergrowth", (*bench).ledgerGrowth},
		{"many", "holders", (*bench).holders},
		{"many", "crowd", (*bench).crowd},
		{"many", "line", (*bench).line},
		{"many", "herd", (*bench).herd},
		{"many", "costs", (*bench).costs},
		{"guest", "index", (*bench).index},
		{"guest", "hotrow", (*bench).hotRow},
		{"guest", "notify", (*bench).notify},
		{"guest", "activity", (*bench).activity},
		{"guest", "log", (*bench).serverLog},
		{"guest", "statements", (*bench).statements},
		{"guest", "slots", (*bench).connectionSlots},
		{"takeover", "terminated", (*bench).terminated},
		{"takeover", "sigkill", (*bench).sigkill},
		{"takeover", "cutoff", (*bench).cutOff},
		{"takeover", "restart", (*bench).restart},
		{"pglead", "size", (*bench).size},
	}
}

type part struct {
	group, name string
	run         func(*bench) error
}

// choose finds the named parts, by their own names or those of their groups.
func choose(wanted string) ([]part, error) {
	chosen := map[string]bool{}
	for name := range strings.SplitSeq(wanted, ",") {
		found := false
		for _, p := range parts() {
			if name == p.name || name == p.group || name == "all" {
				chosen[p.name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("-only: %s is none of all, %s", name, listed())
		}
	}
	return slices.DeleteFunc(parts(), func(p part) bool { return !chosen[p.name] }), nil
}

// listed names all that can be chosen.
func listed() string {
	var groups []string
	members := map[string][]string{}
	for _, p := range parts() {
		if members[p.group] == nil {
			groups = append(groups, p.group)
		}
		members[p.group] = append(members[p.group], p.name)
	}
	for i, g := range groups {
		groups[i] = g + " (" + strings.Join(members[g], " ") + ")"
	}
	return strings.Join(groups, ", ")
}

// bench is what all parts share.
type bench struct {
	options
	site
	dir     string
	path    string // to the programs built here, and the user's
	evicted string // a copy of pglead: see install
	goals   []goal

	charts []chart

	guests    *site    // the guests' server, once there is one
	memorial  []string // the environment of a database that has a ledger, once there is one
	takeovers bool     // have their table
	ends      []func()
}

// site is a server, and the environments in which programs find it.
type site struct {
	server         *localpg.Server
	unix, tcp, tls []string
}

func measure(o options) error {
	wanted, err := choose(o.only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/tmp", "pglead-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{options: o, dir: dir, path: dir + string(os.PathListSeparator) + os.Getenv("PATH")}
	// This process inherits what a run leaves behind, and counts its time, too.
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
	if slices.ContainsFunc(wanted, func(p part) bool { return p.group == "pglead" || p.group == "many" }) {
		time.Sleep(11 * time.Second) // first tries are measured
	}
	b.heading()
	defer func() {
		for _, end := range b.ends {
			end()
		}
	}()
	var failed error
	for _, p := range wanted {
		if err := b.part(p); err != nil {
			failed = fmt.Errorf("%s is not measured", p.name) // the others may be
		}
	}
	printGoals(b.goals)
	if b.svg != "" && len(b.charts) > 0 {
		return errors.Join(failed, os.WriteFile(b.svg, []byte(plot(b.charts)), 0o600))
	}
	return failed
}

func (b *bench) build() error {
	if b.pglead == "" {
		b.pglead = filepath.Join(b.dir, "built")
		// Without the C library each of its processes takes 1.5 ms less processor time.
		if err := command("env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", b.pglead, "."); err != nil {
			return err
		}
	}
	if err := b.install(); err != nil {
		return err
	}
	include, err := exec.Command("pg_config", "--includedir").Output()
	if err != nil {
		return fmt.Errorf("find libpq's header (Debian has it in libpq-dev): %w", err)
	}
	for _, name := range []string{"floor", "floor_each"} {
		if err := command("cc", "-O2", "-I"+strings.TrimSpace(string(include)), "-o", filepath.Join(b.dir, name), "testdata/bench/"+name+".c", "-lpq"); err != nil {
			return err
		}
	}
	return command("cc", "-O2", "-static", "-o", filepath.Join(b.dir, "stamp"), "testdata/bench/stamp.c")
}

// install replaces the programs to measure by copies, as a package's installation makes them, so
// that two builds can be compared. The kernel keeps a file in larger pieces if it was written, or
// read from the disk, as a whole than if a linker wrote it through a map, or page by page: then a
// process starts faster, and ends faster. evicted is the copy that is not in memory before its
// first start, as after a restart of the machine.
func (b *bench) install() error {
	b.evicted = b.pglead
	for name, program := range map[string]*string{"pglead": &b.pglead, "other": &b.also, "evicted": &b.evicted} {
		if *program == "" {
			continue
		}
		text, err := os.ReadFile(*program)
		if err != nil {
			return fmt.Errorf("install pglead: %w", err)
		}
		*program = filepath.Join(b.dir, name)
		if err := os.WriteFile(*program, text, 0o700); err != nil { //nolint:gosec // it is a program
			return fmt.Errorf("install pglead: %w", err)
		}
	}
	file, err := os.Open(b.evicted)
	if err != nil {
		return fmt.Errorf("evict pglead: %w", err)
	}
	defer file.Close()
	if err := errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
		return fmt.Errorf("evict pglead: %w", err)
	}
	return nil
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

// size is the size of the program as it is shipped.
func (b *bench) size() error {
	info, err := os.Stat(b.pglead)
	if err != nil {
		return err
	}
	b.goal("binary, stripped", float64(info.Size())/(1<<20), 10, " MiB")
	return nil
}

// startServer starts a server as a PostgreSQL user would: its settings are
// the defaults, except that no autovacuum comes between two runs. It can be
// reached in three ways. While it is young, a first try waits out the lock-delay,
// unless that is 0.
func (b *bench) startServer(settings map[string]string) (at site, remove func(), err error) {
	port, err := localpg.FreePort()
	if err != nil {
		return site{}, nil, err
	}
	all := map[string]string{
		"port": port, "listen_addresses": "127.0.0.1", "autovacuum": "off", "shared_buffers": "128MB", "max_connections": "100",
		"ssl": "on", "ssl_cert_file": "server.crt", "ssl_key_file": "server.key",
	}
	maps.Copy(all, settings)
	s, remove, err := localpg.Prepare(all)
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
		_, err = s.Query("postgres", "CREATE ROLE secret LOGIN PASSWORD 'secret'; CREATE ROLE app LOGIN")
	}
	if err != nil {
		remove()
		return site{}, nil, err
	}
	common := []string{"PATH=" + b.path, "HOME=" + b.dir, "LC_ALL=C", "PGPORT=" + port, "PGDATABASE=postgres", "ETCDCTL_API=3"}
	return site{
		server: s,
		unix:   slices.Concat(common, []string{"PGHOST=" + s.Socket, "PGUSER=" + localpg.Superuser}),
		tcp:    slices.Concat(common, []string{"PGHOST=127.0.0.1", "PGUSER=" + localpg.Superuser, "PGSSLMODE=disable"}),
		tls:    slices.Concat(common, []string{"PGHOST=127.0.0.1", "PGUSER=secret", "PGPASSWORD=secret", "PGSSLMODE=verify-full", "PGSSLROOTCERT=" + root}),
	}, remove, nil
}
