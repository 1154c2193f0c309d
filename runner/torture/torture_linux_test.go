package torture

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/pgtest"
)

type options struct {
	rounds           int
	lease, lockDelay time.Duration
	seed             uint64
	only             string
	svg              string
	peers            bool
}

func TestMain(m *testing.M) {
	play()
	os.Exit(m.Run())
}

// parseOptions defines the flags when the test runs, not before: a package's
// globals would be made in every role that the binary plays.
func parseOptions() options {
	var o options
	flags := flag.NewFlagSet("torture", flag.ExitOnError)
	flags.IntVar(&o.rounds, "rounds", 1, "how often each fault comes")
	flags.DurationVar(&o.lease, "lease", 3*time.Second, "--lease of all")
	flags.DurationVar(&o.lockDelay, "lock-delay", 2*time.Second, "--lock-delay of all")
	flags.Uint64Var(&o.seed, "seed", 0, "of the schedule; 0 picks one")
	flags.StringVar(&o.only, "only", "", "faults whose names match this regular expression")
	flags.StringVar(&o.svg, "svg", "", "file for the run's picture")
	flags.BoolVar(&o.peers, "peers", false, "compare with flock, psql and etcdctl")
	_ = flags.Parse(strings.Fields(os.Getenv("TORTURE")))
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o
}

// arena is a network with a server and contenders.
type arena struct {
	options
	t      *testing.T
	net    *network
	server *pgtest.Server
	binary string
	self   string // this program, as the command
	dir    string // of the time stamps
	rand   *rand.Rand

	dsn   string   // of the contenders that have no relay in between
	flags []string // of their pglead, beside the usual ones

	mu       sync.Mutex
	pids     map[string]int // host to its pglead
	excused  map[int64]bool
	stopping bool
}

var errNobody = errors.New("nobody leads")

const (
	relayHost = "relay"
	proxied   = "h5" // the host that reaches the server through the relay
)

func contenders() []string { return []string{"h1", "h2", "h3", "h4", proxied} }

func newArena(t *testing.T, o options) *arena {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("CI has to run as root")
		}
		t.Skip("NOT TESTED: partitions need root, for network namespaces")
	}
	for _, program := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%s is missing: testdata/setup tests installs it", program)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	a := &arena{
		options: o, t: t, dir: t.TempDir(), binary: filepath.Join(t.TempDir(), "pglead"),
		pids: map[string]int{}, excused: map[int64]bool{}, rand: rand.New(rand.NewPCG(o.seed, 0)),
	}
	var err error
	a.self, err = os.Executable()
	check(err)
	out, err := exec.Command("go", "build", "-o", a.binary, "github.com/pglead/pglead").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %s", out)
	}
	a.net = newNetwork(t, append([]string{"db", "db2", relayHost}, contenders()...)...)
	a.dsn = "host=" + a.net.hosts["db"]

	server, remove, err := pgtest.Prepare(map[string]string{"listen_addresses": "*"})
	check(err)
	t.Cleanup(remove)
	a.server = server
	check(server.Init())
	hba, err := os.OpenFile(filepath.Join(server.Data, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	check(err)
	_, err = hba.WriteString("host all,replication all 10.77.0.0/24 trust\n")
	check(err)
	check(hba.Close())
	a.startServer()

	a.net.on(relayHost, func() {
		cmd := exec.Command("/proc/self/exe", ":5432", a.net.hosts["db"]+":5432")
		cmd.Env = append(os.Environ(), roleVariable+"=relay")
		check(cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	})
	return a
}

func (a *arena) startServer() {
	a.t.Helper()
	a.net.on("db", func() {
		if err := a.server.StartLogged(); err != nil {
			a.t.Error(err)
		}
	})
}

// contend keeps a pglead running on a host until the arena closes.
func (a *arena) contend(host string, ended *sync.WaitGroup) {
	dsn := a.dsn
	if host == proxied {
		dsn = "host=" + a.net.hosts[relayHost]
	}
	ended.Go(func() {
		for {
			args := append([]string{"run", "--key", "torture", "--lease", a.lease.String(), "--lock-delay", a.lockDelay.String(),
				"--wait", "forever", "--connect-timeout", "2s"}, a.flags...)
			cmd := exec.Command(a.binary, append(args, "--", a.self)...)
			cmd.Env = append(os.Environ(), "PGLEAD_DSN="+dsn+" dbname=postgres user="+pgtest.Superuser,
				roleVariable+"=command", dirVariable+"="+a.dir, hostVariable+"="+host)
			var err error
			a.net.on(host, func() {
				a.mu.Lock()
				defer a.mu.Unlock()
				if a.stopping {
					err = os.ErrClosed
					return
				}
				if err = cmd.Start(); err == nil {
					a.pids[host] = cmd.Process.Pid
				}
			})
			if err != nil {
				return
			}
			_ = cmd.Wait()
			time.Sleep(20 * time.Millisecond)
		}
	})
}

func (a *arena) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopping = true
	for _, pid := range a.pids {
		_ = unix.Kill(pid, unix.SIGCONT)
		_ = unix.Kill(pid, unix.SIGKILL) // the guards do the rest
	}
}

func (a *arena) history() history {
	a.t.Helper()
	h, err := readHistory(a.dir)
	if err != nil {
		a.t.Fatal(err)
	}
	for i := range h {
		h[i].excused = a.excused[h[i].token]
	}
	return h
}

// leader is who has been leading for a moment.
type leader struct {
	life
	pglead, guard int
}

func (a *arena) leader() (leader, error) {
	h := slices.DeleteFunc(a.history(), func(l life) bool { return l.excused })
	h.sort()
	now := boottime.Now()
	if len(h) == 0 {
		return leader{}, errNobody
	}
	l := h[len(h)-1]
	if now-l.last > 100*time.Millisecond || now-l.first < 300*time.Millisecond {
		return leader{}, errNobody
	}
	a.mu.Lock()
	pid := a.pids[l.host]
	a.mu.Unlock()
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(pid), "-x", "lease-guard").Output()
	if err != nil {
		return leader{}, errNobody
	}
	guard, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return leader{}, err
	}
	return leader{life: l, pglead: pid, guard: guard}, nil
}

func (a *arena) awaitLeader() leader {
	a.t.Helper()
	for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(20 * time.Millisecond) {
		if l, err := a.leader(); err == nil {
			return l
		}
	}
	a.t.Fatal("nobody leads for two minutes")
	panic("unreachable")
}

// fault breaks something about the leader, and mends it afterwards.
type fault struct {
	name string
	// strike does the damage.
	strike func(a *arena, l leader)
	// mend undoes it, a lease and a lock-delay later. May be nil.
	mend func(a *arena, l leader)
	// unseats says that somebody else has to lead before things are mended.
	unseats bool
	// proxiedOnly faults make sense only for the host behind the relay.
	proxiedOnly bool
}

func faults() []fault {
	signal := func(pid func(l leader) int, sig unix.Signal) func(*arena, leader) {
		return func(_ *arena, l leader) { _ = unix.Kill(pid(l), sig) }
	}
	pglead := func(l leader) int { return l.pglead }
	guard := func(l leader) int { return l.guard }
	heal := func(a *arena, l leader) { a.net.heal(l.host) }
	partition := func(in, out bool) func(*arena, leader) {
		return func(a *arena, l leader) { a.net.cut(l.host, in, out) }
	}
	restart := func(sig syscall.Signal) func(*arena, leader) {
		return func(a *arena, _ leader) {
			if err := a.server.Stop(sig); err != nil {
				a.t.Error(err)
			}
			a.startServer()
		}
	}
	return []fault{
		{name: "clean end", strike: signal(pglead, unix.SIGUSR1), unseats: true},
		{name: "SIGKILL of pglead", strike: signal(pglead, unix.SIGKILL), unseats: true},
		{name: "SIGKILL of the guard", strike: signal(guard, unix.SIGKILL), unseats: true},
		{name: "SIGSTOP of pglead", strike: signal(pglead, unix.SIGSTOP), mend: signal(pglead, unix.SIGCONT), unseats: true},
		{name: "SIGSTOP of the guard", strike: signal(guard, unix.SIGSTOP), mend: signal(guard, unix.SIGCONT)},
		{name: "SIGSTOP of pglead, then terminate", strike: func(a *arena, l leader) {
			_ = unix.Kill(l.pglead, unix.SIGSTOP)
			a.terminate()
		}, mend: signal(pglead, unix.SIGCONT), unseats: true},
		{name: "pg_terminate_backend", strike: func(a *arena, _ leader) { a.terminate() }, unseats: true},
		{name: "server restart, fast", strike: restart(syscall.SIGINT), unseats: true},
		{name: "server restart, immediate", strike: restart(syscall.SIGQUIT), unseats: true},
		{name: "server SIGSTOP", strike: func(a *arena, _ leader) { a.signalServer(unix.SIGSTOP) }, mend: func(a *arena, _ leader) { a.signalServer(unix.SIGCONT) }},
		{name: "partition", strike: partition(true, true), mend: heal, unseats: true},
		{name: "partition, incoming only", strike: partition(true, false), mend: heal, unseats: true},
		{name: "partition, outgoing only", strike: partition(false, true), mend: heal, unseats: true},
		{name: "partition, then terminate", strike: func(a *arena, l leader) {
			a.net.cut(l.host, true, true)
			a.terminate()
		}, mend: heal, unseats: true},
		{name: "host behind a relay vanishes", strike: partition(true, true), mend: heal, unseats: true, proxiedOnly: true},
		{name: "SIGKILL of both (not promised)", strike: func(a *arena, l leader) {
			a.excused[l.token] = true
			_ = unix.Kill(l.guard, unix.SIGSTOP)
			_ = unix.Kill(l.pglead, unix.SIGKILL)
			_ = unix.Kill(l.guard, unix.SIGKILL)
		}, mend: func(a *arena, l leader) {
			left, _ := filepath.Glob(filepath.Join(a.dir, fmt.Sprintf("%d.*", l.token)))
			for _, file := range left {
				if pid, err := strconv.Atoi(file[strings.LastIndexByte(file, '.')+1:]); err == nil {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		}, unseats: true},
	}
}

// terminate ends the session of whoever holds the lock.
func (a *arena) terminate() {
	if _, err := a.server.Query("postgres", "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"); err != nil {
		a.t.Error(err)
	}
}

// signalServer reaches the postmaster and all its children.
func (a *arena) signalServer(sig unix.Signal) {
	_ = unix.Kill(a.server.PID(), sig)
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(a.server.PID())).Output()
	for _, field := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(field); err == nil {
			_ = unix.Kill(pid, sig)
		}
	}
}

// event is a fault that came, and what followed.
type event struct {
	fault string
	at    time.Duration
	host  string
	next  time.Duration // until the next command started; 0 where none had to
}

// bound is the contract's: longer than this nobody waits for a lock whose
// holder is gone.
func (a *arena) bound() time.Duration { return a.lease + a.lockDelay + 2*time.Second }

func (a *arena) inflict(f fault) event {
	a.t.Helper()
	l := a.awaitLeader()
	for f.proxiedOnly && l.host != proxied {
		_ = unix.Kill(l.pglead, unix.SIGUSR1) // until it is the right one's turn
		time.Sleep(100 * time.Millisecond)
		l = a.awaitLeader()
	}
	at := boottime.Now()
	f.strike(a, l)
	e := event{fault: f.name, at: at, host: l.host}
	if !f.unseats {
		time.Sleep(a.lease + a.lockDelay)
	}
	for f.unseats {
		if next, ok := a.history().next(at); ok {
			e.next = next.first - at
			break
		}
		if boottime.Now()-at > a.bound()+30*time.Second {
			h := a.history()
			h.sort()
			a.t.Errorf("%s at %v: nobody leads %v later; struck was %+v; last led %+v", f.name, at, boottime.Now()-at, l, h[max(0, len(h)-3):])
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if f.mend != nil {
		f.mend(a, l)
	}
	return e
}

func TestTorture(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT TESTED: torture takes a minute")
	}
	o := parseOptions()
	t.Logf("TORTURE='-seed %d -rounds %d -lease %v -lock-delay %v'", o.seed, o.rounds, o.lease, o.lockDelay)
	a := newArena(t, o)
	var ended sync.WaitGroup
	for _, host := range contenders() {
		a.contend(host, &ended)
	}
	var schedule []fault
	for range o.rounds {
		for _, f := range faults() {
			if regexp.MustCompile(o.only).MatchString(f.name) {
				schedule = append(schedule, f)
			}
		}
	}
	a.rand.Shuffle(len(schedule), func(i, j int) { schedule[i], schedule[j] = schedule[j], schedule[i] })

	began := boottime.Now()
	var events []event
	for _, f := range schedule {
		events = append(events, a.inflict(f))
		time.Sleep(time.Duration(a.rand.Int64N(int64(200 * time.Millisecond))))
	}
	a.awaitLeader()
	a.close()
	ended.Wait()

	h := a.history()
	for _, e := range events {
		if e.next > a.bound() {
			t.Errorf("%s: %v until the next command, more than %v", e.fault, e.next, a.bound())
		}
	}
	a.verdict(began, h, events)
}

// verdict checks the history and prints it.
func (a *arena) verdict(began time.Duration, h history, events []event) {
	a.t.Helper()
	promised := slices.DeleteFunc(slices.Clone(h), func(l life) bool { return l.excused })
	overlaps := promised.overlaps()
	for _, o := range overlaps {
		if a.lockDelay > 0 {
			a.t.Errorf("overlap: %v", o)
		}
	}
	if err := h.disorder(); err != nil {
		a.t.Error(err)
	}
	a.t.Logf("%d commands led in %v\n%s", len(h), (boottime.Now() - began).Round(time.Second), table(events, overlaps))
	if a.svg != "" {
		if err := os.WriteFile(a.svg, picture(h, events), 0o644); err != nil {
			a.t.Error(err)
		}
	}
}

// TestPromotion: a primary with a synchronous standby, and --quorum. In turn
// the primary crashes, or is cut off from its standby while everyone else
// still reaches both; each time the standby is promoted.
func TestPromotion(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT TESTED: promotion takes a while")
	}
	o := parseOptions()
	a := newArena(t, o)
	a.flags = []string{"--quorum"}
	a.dsn = fmt.Sprintf("host=%s,%s", a.net.hosts["db"], a.net.hosts["db2"])
	settings := map[string]string{"listen_addresses": "*", "synchronous_standby_names": "*"}
	primaryHost, standbyHost := "db", "db2"
	standby := a.standby(standbyHost, primaryHost, settings)
	// Only now, since the base backup is taken from a primary that waits for nobody.
	if _, err := a.server.Query("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'"); err != nil {
		t.Fatal(err)
	}
	if _, err := a.server.Query("postgres", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	for _, host := range contenders() {
		if host != proxied {
			a.contend(host, &ended)
		}
	}
	began := boottime.Now()
	var events []event
	for round := range 2 * o.rounds {
		l := a.awaitLeader()
		e := event{fault: "crash of the primary, promotion", at: boottime.Now(), host: l.host}
		split := round%2 == 1
		if split {
			e.fault = "primary cut off from its standby, promotion"
			a.net.cutFrom(primaryHost, standbyHost)
			// The rule of promotion: not before the old primary's leaders have
			// had their lease. An operator or Patroni has its own time-outs.
			time.Sleep(a.lease)
			if h := a.history(); !slices.ContainsFunc(h, func(x life) bool { return x.token == l.token && boottime.Now()-x.last > 100*time.Millisecond }) {
				t.Errorf("token %d leads on without its quorum", l.token)
			}
		} else if err := a.server.Stop(syscall.SIGQUIT); err != nil {
			t.Error(err)
		}
		if err := standby.Run("pg_ctl", "promote", "-w", "-D", standby.Data); err != nil {
			t.Fatal(err)
		}
		if split {
			if err := a.server.Stop(syscall.SIGQUIT); err != nil {
				t.Error(err)
			}
			a.net.heal(primaryHost)
		}
		// The new primary gets a standby, where the old one was; until then no
		// token is confirmed.
		a.server = standby
		primaryHost, standbyHost = standbyHost, primaryHost
		standby = a.standby(standbyHost, primaryHost, settings)
		next := a.awaitLeader()
		e.next = next.first - e.at
		events = append(events, e)
	}
	a.close()
	ended.Wait()
	a.verdict(began, a.history(), events)
}

// standby makes a standby on one host of the primary on another.
func (a *arena) standby(host, primary string, settings map[string]string) *pgtest.Server {
	a.t.Helper()
	var standby *pgtest.Server
	a.net.on(host, func() {
		s, remove, err := a.server.Standby(settings, a.net.hosts[primary])
		if err != nil {
			a.t.Error(err)
			return
		}
		a.t.Cleanup(remove)
		standby = s
	})
	if standby == nil {
		a.t.FailNow()
	}
	return standby
}
