package torture

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

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
	seen   *witnesses
	stalls stalls
	rand   *rand.Rand

	pooler   *exec.Cmd
	relay    *exec.Cmd
	setClock func(seconds int) // sets the server's clock; nil if that can't be set

	dsn   string   // of the contenders that have no relay in between
	flags []string // of their pglead, beside the usual ones

	foreign history // when a foreign session had the locks

	mu       sync.Mutex
	pids     map[string]int       // host to its pglead
	since    map[string]time.Time // when that was started, unless it has ended
	ends     map[int]bool         // pgleads that a fault ends
	stopping bool
	started  map[string]bool // the sessions that have announced a start

	hasty  bool   // the fault at hand strikes whoever has just begun
	killed string // the session of the waiter that was killed last, until a lock-delay was waited out

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
	if m.old != nil {
		o.hostile = false // the old version believes whoever says that a holder has ended
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
		options: o, mode: m, t: t, dir: memoryDir(t), binary: buildPglead(t),
		pids: map[string]int{}, since: map[string]time.Time{}, ends: map[int]bool{}, started: map[string]bool{},
		rand: rand.New(rand.NewPCG(o.seed, 0)),
	}
	a.seen = newWitnesses(a.dir)
	if a.logs == "" {
		a.logs = t.TempDir()
	}
	check(os.MkdirAll(a.logs, 0o755))
	var err error
	a.self, err = os.Executable()
	check(err)
	if m.old != nil {
		a.buildOld()
	}
	a.net = newNetwork(t, append([]string{"db", "db2", relayHost, poolerHost}, contenders()...)...)
	a.dsn = "host=" + a.net.hosts["db"]

	server, remove, err := localpg.Prepare(map[string]string{"listen_addresses": "*"})
	check(err)
	t.Cleanup(remove)
	a.server = server
	a.setClock = testserver.Clock(t, a.server)
	check(server.Init())
	check(admitNetwork(server))
	a.startServer()
	_, err = a.server.Query("postgres", "CREATE ROLE "+stranger+" LOGIN")
	check(err)
	if a.lostGrace > 0 {
		a.flags = append(a.flags, "--lost-grace", a.lostGrace.String())
	}
	if a.ledger {
		_, err = a.server.Query("postgres", ledger.InstallSQL(ledger.Plan{Keep: ledger.Keep}))
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
		log, err := os.OpenFile(a.logOf(host), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
		if err != nil {
			a.t.Error(err)
			return
		}
		defer log.Close()
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

// mayStrike says on which hosts a fault may strike. The newcomer is spared: it has to
// come while others are struck.
func (a *arena) mayStrike(f fault) func(host string) bool {
	return func(host string) bool { return !a.newcomer(host) && (f.strikes == nil || f.strikes(host)) }
}

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
