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
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
)

type options struct {
	rounds           int
	lease, lockDelay time.Duration
	seed             uint64
	only             string
	svg, logs        string
	peers            bool
	modeName         string
	hostile          bool
	ledger           bool
	lostGrace        time.Duration
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
	flags.StringVar(&o.logs, "logs", "", "directory for what the pgleads say")
	flags.BoolVar(&o.peers, "peers", false, "compare with flock, psql and etcdctl")
	flags.BoolVar(&o.hostile, "hostile", true, "strangers say all that they can meanwhile")
	flags.DurationVar(&o.lostGrace, "lost-grace", 0, "--lost-grace of all")
	flags.BoolVar(&o.ledger, "ledger", false, "the database has a ledger, and one contender comes anew all the time")
	flags.StringVar(&o.modeName, "mode", "run", strings.Join(modeNames(), ", "))
	_ = flags.Parse(strings.Fields(os.Getenv("TORTURE")))
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o
}

// arena is a network with a server and contenders.
type arena struct {
	options
	mode   mode
	t      *testing.T
	net    *network
	server *localpg.Server
	binary string
	old    string // the same of an old version, for mode mixed
	self   string // this program, as the command
	dir    string // of the time stamps
	rand   *rand.Rand

	pooler *exec.Cmd
	relay  *exec.Cmd
	clock  string // the file that sets the server's, if it can be set

	dsn   string   // of the contenders that have no relay in between
	flags []string // of their pglead, beside the usual ones

	foreign history // when a foreign session had the locks

	mu       sync.Mutex
	pids     map[string]int       // host to its pglead
	since    map[string]time.Time // when that was started, unless it has ended
	excused  map[int64]bool
	ends     map[int]bool // pgleads that a fault ends
	stopping bool

	strangers []uint32 // sessions whose words are not to be repeated as true
}

var errNobody = errors.New("nobody leads")

const (
	poolerHost = "pool"
	relayHost  = "relay"
	proxied    = "h5" // the host that reaches the server through the relay
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
	m, ok := modes()[o.modeName]
	if !ok {
		t.Fatalf("-mode %s: one of %s", o.modeName, strings.Join(modeNames(), ", "))
	}
	programs := []string{"ip", "nft"}
	if m.pooled != nil {
		programs = append(programs, "pgbouncer")
	}
	for _, program := range programs {
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
		options: o, mode: m, t: t, dir: t.TempDir(), binary: filepath.Join(t.TempDir(), "pglead"),
		pids: map[string]int{}, since: map[string]time.Time{}, excused: map[int64]bool{}, ends: map[int]bool{}, rand: rand.New(rand.NewPCG(o.seed, 0)),
	}
	if a.logs == "" {
		a.logs = t.TempDir()
	}
	var err error
	a.self, err = os.Executable()
	check(err)
	out, err := exec.Command("go", "build", "-o", a.binary, "github.com/pglead/pglead").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %s", out)
	}
	if m.old != nil {
		a.buildOld()
	}
	a.net = newNetwork(t, append([]string{"db", "db2", relayHost, poolerHost}, contenders()...)...)
	a.dsn = "host=" + a.net.hosts["db"]

	server, remove, err := localpg.Prepare(map[string]string{"listen_addresses": "*"})
	check(err)
	t.Cleanup(remove)
	a.server = server
	a.prepareClock()
	check(server.Init())
	hba, err := os.OpenFile(filepath.Join(server.Data, "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	check(err)
	_, err = hba.WriteString("host all,replication all 10.77.0.0/24 trust\n")
	check(err)
	check(hba.Close())
	a.startServer()
	_, err = a.server.Query("postgres", "CREATE ROLE "+stranger+" LOGIN")
	check(err)
	if a.lostGrace > 0 {
		a.flags = append(a.flags, "--lost-grace", a.lostGrace.String())
	}
	if a.ledger {
		_, err = a.server.Query("postgres", ledger.SQL(ledger.Keep))
		check(err)
		a.flags = append(a.flags, "--ledger", "require")
	}

	a.startRelay()
	if m.pooled != nil {
		a.startPooler()
		t.Cleanup(a.stopPooler)
	}
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
	if via := a.reaches(host); via != host {
		dsn = "host=" + a.net.hosts[via]
	}
	ended.Go(func() {
		for {
			args := append(a.mode.args(host), "--lease", a.lease.String(), "--lock-delay", a.lockDelay.String(), "--connect-timeout", "2s")
			args = append(args, a.flags...)
			if a.newcomer(host) {
				args = append(args, "--wait", "0")
			}
			args = append(args, "--", a.self)
			binary := a.binary
			if a.mode.old != nil && a.mode.old(host) {
				binary = a.old
			}
			cmd := exec.Command(binary, args...)
			cmd.Env = append(os.Environ(), "PGLEAD_DSN="+dsn+" dbname=postgres user="+localpg.Superuser,
				roleVariable+"=command", dirVariable+"="+a.dir, hostVariable+"="+host)
			cmd.Env = append(cmd.Env, "PGLEAD_VERBOSE=true", "PGLEAD_LOG_FORMAT=json")
			log, err := os.OpenFile(a.logOf(host), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
			if err != nil {
				a.t.Error(err)
				return
			}
			defer log.Close()
			cmd.Stderr = log
			a.net.on(host, func() {
				a.mu.Lock()
				defer a.mu.Unlock()
				if a.stopping {
					err = os.ErrClosed
					return
				}
				if err = cmd.Start(); err == nil {
					a.pids[host], a.since[host] = cmd.Process.Pid, time.Now()
				}
			})
			if err != nil {
				return
			}
			err = cmd.Wait()
			a.mu.Lock()
			delete(a.since, host) // what comes next is a newcomer
			if a.mode.stays && !a.stopping && !a.ends[cmd.Process.Pid] {
				a.t.Errorf("pglead on %s gave up: %v: %s", host, err, a.lastSaid(host, 3))
			}
			a.mu.Unlock()
			if a.newcomer(host) {
				continue
			}
			time.Sleep(20 * time.Millisecond)
			if rand.N(2) == 0 { // else newcomers always forestall those who poll
				time.Sleep(a.mode.polls)
			}
		}
	})
}

// newcomer says of a host that it only ever makes first tries, one after the other.
// Where they know how the last run ended, all faults may come while they do.
func (a *arena) newcomer(host string) bool { return a.ledger && !a.mode.stays && host == "h4" }

// close ends the contenders. Those that stay are asked to, and have to do so in
// time.
func (a *arena) close(ended *sync.WaitGroup) {
	a.t.Helper()
	gone := make(chan struct{})
	if a.mode.stays {
		a.mu.Lock()
		a.stopping = true
		for _, pid := range a.pids {
			_ = unix.Kill(pid, unix.SIGTERM)
		}
		a.mu.Unlock()
		go func() {
			ended.Wait()
			close(gone)
		}()
		select {
		case <-gone:
			return
		case <-time.After(stepDown):
			a.t.Errorf("not all have stepped down within %v of SIGTERM", stepDown)
		}
	}
	a.kill()
	ended.Wait()
}

func (a *arena) kill() {
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
		h[i].shared = a.mode.reads != nil && a.mode.reads(h[i].host)
	}
	return h
}

// leader is who has been leading for a moment.
type leader struct {
	life
	pglead, guard int
}

// settled is how long a command takes to know its daemon.
const settled = 300 * time.Millisecond

// living are those who lead now. Somebody who has just died still looks alive,
// but for the one who came after.
func (a *arena) living() history {
	all, now := a.history(), boottime.Now()
	return slices.DeleteFunc(slices.Clone(all), func(l life) bool {
		return l.excused || now-l.last > 100*time.Millisecond || slices.ContainsFunc(all, func(later life) bool {
			return later.first > l.first && (later.excludes(l) || later.host == l.host)
		})
	})
}

// leader is one of those who lead now, on a host that the condition allows.
func (a *arena) leader(strikes func(host string) bool) (leader, error) {
	now := boottime.Now()
	h := slices.DeleteFunc(a.living(), func(l life) bool {
		return now-l.first < settled || strikes != nil && !strikes(l.host)
	})
	if len(h) == 0 {
		return leader{}, errNobody
	}
	l := h[a.rand.IntN(len(h))]
	a.mu.Lock()
	pid := a.pids[l.host]
	a.mu.Unlock()
	guard, err := guardOf(pid)
	if err != nil {
		return leader{}, errNobody
	}
	return leader{life: l, pglead: pid, guard: guard}, nil
}

// guardOf finds a pglead's guard, which it has from its first try on.
func guardOf(pglead int) (int, error) {
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(pglead), "-x", "lease-guard").Output()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(out)))
}

// awaitInLine waits until no contender's first try is still to come.
func (a *arena) awaitInLine() {
	a.t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		a.mu.Lock()
		newcomer := slices.ContainsFunc(contenders(), func(host string) bool {
			if a.mode.guardless {
				since, runs := a.since[host]
				return !runs || time.Since(since) < 3*time.Second
			}
			_, err := guardOf(a.pids[host])
			return err != nil
		})
		a.mu.Unlock()
		if !newcomer {
			return
		}
	}
	a.t.Error("newcomers for a minute")
}

func (a *arena) awaitLeader() leader {
	a.t.Helper()
	for began := time.Now(); time.Since(began) < 2*time.Minute; time.Sleep(20 * time.Millisecond) {
		if l, err := a.leader(nil); err == nil {
			return l
		}
	}
	a.t.Fatal("nobody leads for two minutes\n" + a.state())
	panic("unreachable")
}

// awaitLeaderOn ends commands well until one leads where it is wanted.
func (a *arena) awaitLeaderOn(strikes func(host string) bool) leader {
	a.t.Helper()
	for began := time.Now(); time.Since(began) < 5*time.Minute; {
		l := a.awaitLeader()
		if strikes == nil || strikes(l.host) {
			return l
		}
		if l, err := a.leader(strikes); err == nil {
			return l
		}
		_ = unix.Kill(l.pglead, unix.SIGUSR1)
		time.Sleep(100 * time.Millisecond)
	}
	a.t.Fatal("the host that is to be struck does not lead for five minutes")
	panic("unreachable")
}

// endFellows ends well who holds a lock with the one that is struck: only then
// does anyone wait for that one alone.
func (a *arena) endFellows(struck leader, at time.Duration) {
	for {
		fellows := slices.DeleteFunc(a.living(), func(l life) bool {
			return l.token == struck.token || l.first > at || !l.shared || !l.meets(struck.life)
		})
		if !slices.ContainsFunc(fellows, func(l life) bool { return boottime.Now()-l.first < settled }) {
			a.mu.Lock()
			for _, l := range fellows {
				_ = unix.Kill(a.pids[l.host], unix.SIGUSR1)
			}
			a.mu.Unlock()
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
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
	// strikes says on which hosts it makes sense; nil: on all.
	strikes func(host string) bool
	// end is what those in line learn of the leader's end, and so how soon
	// somebody else has to lead.
	end end
	// within is instead how soon that is, unless it is 0.
	within time.Duration
	// tears: the server frees the lock while its holder can't hear of it. That
	// a newcomer does not start at once is not promised then.
	tears bool
	// pauses: a candidate does not stand again at once.
	pauses bool
	// alone: it is all of the fault, and finds its leaders by itself.
	alone func(a *arena) event
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
		{name: "clean end", strike: signal(pglead, unix.SIGUSR1), unseats: true, pauses: true, end: said},
		{name: "SIGKILL of pglead", strike: func(a *arena, l leader) {
			a.mayEnd(l.pglead)
			_ = unix.Kill(l.pglead, unix.SIGKILL)
		}, unseats: true, end: said},
		{name: "SIGKILL of the guard", strike: signal(guard, unix.SIGKILL), unseats: true, pauses: true, end: said},
		{name: "SIGSTOP of pglead", strike: signal(pglead, unix.SIGSTOP), mend: signal(pglead, unix.SIGCONT), unseats: true, end: silent},
		{name: "SIGSTOP of the guard", strike: signal(guard, unix.SIGSTOP), mend: signal(guard, unix.SIGCONT)},
		{name: "SIGSTOP of the guard with signals pending, then terminate", strike: func(a *arena, l leader) {
			_ = unix.Kill(l.guard, unix.SIGSTOP)
			for range 600 { // about 300 fill a socket
				_ = unix.Kill(l.pglead, unix.SIGWINCH)
				time.Sleep(200 * time.Microsecond) // else most of them come to one
			}
			a.terminate()
		}, unseats: true, tears: true},
		{name: "SIGSTOP of pglead, then terminate", strike: func(a *arena, l leader) {
			_ = unix.Kill(l.pglead, unix.SIGSTOP)
			a.terminate()
		}, mend: signal(pglead, unix.SIGCONT), unseats: true},
		{name: "pg_terminate_backend", strike: func(a *arena, _ leader) { a.terminate() }, unseats: true, end: said},
		{name: "server restart, fast", strike: restart(syscall.SIGINT), unseats: true},
		{name: "server restart, immediate", strike: restart(syscall.SIGQUIT), unseats: true},
		{name: "server SIGSTOP", strike: func(a *arena, _ leader) { a.signalServer(unix.SIGSTOP) }, mend: func(a *arena, _ leader) { a.signalServer(unix.SIGCONT) }},
		{name: "partition", strike: partition(true, true), mend: heal, unseats: true, end: silent},
		{name: "partition, incoming only", strike: partition(true, false), mend: heal, unseats: true},
		{name: "partition, outgoing only", strike: partition(false, true), mend: heal, unseats: true, end: silent},
		{name: "partition, then terminate", strike: func(a *arena, l leader) {
			a.net.cut(l.host, true, true)
			a.terminate()
		}, mend: heal, unseats: true, tears: true},
		{name: "host behind a relay vanishes", strike: partition(true, true), mend: heal, unseats: true, end: silent, strikes: func(host string) bool { return host == proxied }},
		{name: "SIGKILL of both (not promised)", strike: func(a *arena, l leader) {
			a.excused[l.token] = true
			a.mayEnd(l.pglead)
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
	bound time.Duration // what that must not exceed
}

func (a *arena) inflict(f fault) event {
	a.t.Helper()
	if f.alone != nil {
		return f.alone(a)
	}
	if f.tears && !a.ledger {
		a.awaitInLine()
	}
	l := a.awaitLeaderOn(f.strikes)
	at := boottime.Now()
	a.note("%s: token %d on %s, backends in line %v", f.name, l.token, l.host, a.inLine())
	f.strike(a, l)
	e := event{fault: f.name, at: at, host: l.host, bound: a.within(f)}
	if f.unseats && l.shared {
		a.endFellows(l, at)
	}
	if !f.unseats {
		time.Sleep(a.lease + a.lockDelay)
	}
	for f.unseats {
		// Counted from the last that was seen of it, since it may have ended
		// by itself before it was struck: then it was struck in vain.
		if next, ok := a.history().next(l.last, l.life); ok {
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
	switch {
	case e.next < 0:
		a.t.Logf("%s on %s: token %d had ended %v before", f.name, l.host, l.token, -e.next)
		return a.inflict(f)
	case !a.mode.stays:
	case f.pauses:
		a.awaitCandidates(standsAfterPause)
	default:
		a.awaitCandidates(standsAfterLoss)
	}
	return e
}

// telling are the faults of a mode's short run.
const telling = "^(SIGKILL of (pglead|the guard|the pooler)|pg_terminate_backend|partition|SIGTERM, .*|foreign .*)$"

// TestTorture puts every fault to `pglead run` and the most telling ones to the
// other modes, unless TORTURE says what to do.
func TestTorture(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT TESTED: torture takes minutes")
	}
	o := parseOptions()
	if os.Getenv("TORTURE") != "" {
		torture(t, o)
		return
	}
	t.Run(o.modeName, func(t *testing.T) { torture(t, o) })
	for _, name := range modeNames() {
		if name != o.modeName {
			short := o
			short.modeName, short.only = name, telling
			t.Run(name, func(t *testing.T) { torture(t, short) })
		}
	}
}

func torture(t *testing.T, o options) {
	t.Helper()
	t.Logf("TORTURE='-mode %s -seed %d -rounds %d -lease %v -lock-delay %v'", o.modeName, o.seed, o.rounds, o.lease, o.lockDelay)
	a := newArena(t, o)
	var ended sync.WaitGroup
	for _, host := range contenders() {
		a.contend(host, &ended)
	}
	if a.hostile {
		defer a.hostility()()
	}
	var schedule []fault
	only := regexp.MustCompile(o.only)
	for range o.rounds {
		for _, f := range slices.Concat(faults(), []fault{lossyProxy(a), foreignInLine(), strangersRequest(a)}, lineFaults(a), clockFaults(a), a.mode.more) {
			if only.MatchString(f.name) {
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
	if a.mode.queues && !a.ledger {
		a.everyonesTurn()
	}
	a.awaitLeader()
	a.close(&ended)

	for _, e := range events {
		if e.next > e.bound {
			t.Errorf("%s: %v until the next command, more than %v", e.fault, e.next, e.bound)
		}
	}
	a.verdict(began, a.history(), events)
}

// verdict checks the history and prints it.
func (a *arena) verdict(began time.Duration, h history, events []event) {
	a.t.Helper()
	// One list for both judges: each of them sorts it where it is.
	promised := slices.DeleteFunc(slices.Concat(h, a.foreign), func(l life) bool { return l.excused })
	overlaps := promised.overlaps()
	for _, o := range overlaps {
		if a.lockDelay > 0 {
			a.t.Errorf("overlap: %v", o)
		}
	}
	said := judge(promised)
	for _, s := range said {
		if a.lockDelay > 0 {
			a.t.Error(s)
		} else {
			a.t.Log(s)
		}
	}
	if len(overlaps) > 0 && len(said) == 0 {
		a.t.Error("the second judge has seen no overlap")
	}
	if err := h.disorder(); err != nil {
		a.t.Error(err)
	}
	// No slot was anyone's at the same time as another's: as many at once as
	// there are slots.
	if locks := h.held(); a.mode.slots > 0 && len(locks) > a.mode.slots {
		a.t.Errorf("%d slots: %s", a.mode.slots, strings.Join(locks, ", "))
	}
	a.t.Logf("%d commands led in %v\n%s", len(h), (boottime.Now() - began).Round(time.Second), table(a.modeName, events, overlaps))
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
	if o.modeName != "run" {
		t.Skip("NOT RUN: a failover is the same for all modes")
	}
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
	a.close(&ended)
	a.verdict(began, a.history(), events)
}

// standby makes a standby on one host of the primary on another.
func (a *arena) standby(host, primary string, settings map[string]string) *localpg.Server {
	a.t.Helper()
	var standby *localpg.Server
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
