package torture

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg"
)

// mode is a way of locking that contenders use.
type mode struct {
	// args are a contender's pglead's, up to the lease.
	args func(host string) []string
	// reads says which contenders hold the lock with others.
	reads func(host string) bool
	// old says which are of an old version.
	old func(host string) bool
	// pooled says which reach the server through PgBouncer.
	pooled func(host string) bool
	// keys are the locked ones, unless there is but one, torture.
	keys []string
	// slots is how many may hold the lock at once, each with a number; 0: no
	// numbers.
	slots int
	// stays: a contender's pglead ends only when it is killed or asked to.
	stays bool
	// queues: who waits longest is next, so everybody's turn comes.
	queues bool
	// lined: who waits stands in line, with a ticket.
	lined bool
	// heeds: who is first in line goes by what is said and seen of the holder, so
	// that it is next at once where there is evidence.
	heeds bool
	// polls is the most by which a waiter may be late for a free lock.
	polls time.Duration
	// guardless waiters start no guard before they have the lock, so that only
	// their age tells whether their first try, within --connect-timeout, is over.
	guardless bool
	// more are faults that only this mode has.
	more []fault
}

// modes are the values of -mode.
func modes() map[string]mode {
	run := func(flags ...string) func(string) []string {
		return func(string) []string { return append([]string{"run", "--wait", "forever"}, flags...) }
	}
	return map[string]mode{
		"run": {args: run("--key", "torture"), queues: true, lined: true, heeds: true},
		// Nobody's turn is certain: those of old versions are granted the lock by the
		// server, before any ticket.
		"mixed": {args: run("--key", "torture"), old: old, lined: true},
		"shared": {args: func(host string) []string {
			if reader(host) {
				return run("--key", "torture", "--shared")(host)
			}
			return run("--key", "torture")(host)
		}, reads: reader, queues: true, lined: true},
		"slots": {args: run("--key", "torture", "--slots", "2"), slots: 2, queues: true, lined: true},
		// Any two sets have a key in common, so that one contender runs at a
		// time, and their order on the command line is no order.
		"keys": {keys: []string{"a", "b", "c"}, args: func(host string) []string {
			return map[string][]string{
				"h1":    run("--key", "a", "--key", "b")(host),
				"h2":    run("--key", "b", "--key", "c")(host),
				"h3":    run("--key", "c", "--key", "a")(host),
				"h4":    run("--key", "c", "--key", "b", "--key", "a")(host),
				proxied: run("--key", "b", "--key", "a")(host),
			}[host]
		}, queues: true, lined: true},
		"transaction": {
			args: run("--key", "torture", "--transaction"), pooled: throughPooler,
			// A waiter's tries are up to three seconds apart.
			polls: 3 * time.Second,
			more: []fault{
				{name: "SIGKILL of the pooler", strike: func(a *arena, _ leader) {
					_ = a.pooler.Process.Kill()
					_ = a.pooler.Wait()
				}, mend: func(a *arena, _ leader) { a.startPooler() }, unseats: true, strikes: throughPooler},
				{name: "partition of the pooler", strike: func(a *arena, _ leader) { a.net.cut(poolerHost, true, true) },
					mend: func(a *arena, _ leader) { a.net.heal(poolerHost) }, unseats: true, strikes: throughPooler},
			},
		},
		"each": {
			args:  func(string) []string { return []string{"each", "--key", "{}", "torture", "--wait", "forever"} },
			polls: 3 * time.Second, guardless: true,
		},
		"lead": {
			args: func(string) []string { return []string{"lead", "--key", "torture", "--first-delay", "0"} }, stays: true, lined: true, heeds: true,
			more: []fault{
				{name: "SIGTERM, step down", strike: func(a *arena, l leader) {
					a.mayEnd(l.pglead)
					_ = unix.Kill(l.pglead, unix.SIGTERM)
				}, unseats: true, within: stepDown},
			},
		},
	}
}

// stepDown is how long the end of a command may take that leaves a daemon
// behind which is deaf to SIGTERM: --leftovers gives it 5 s.
const stepDown = 5*time.Second + 2*time.Second

func reader(host string) bool        { return host == "h1" || host == "h2" }
func throughPooler(host string) bool { return host == "h3" || host == "h4" }

func modeNames() []string {
	var names []string
	for name := range modes() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// startPooler starts PgBouncer on its host.
func (a *arena) startPooler() {
	a.t.Helper()
	account, err := localpg.Account()
	if err != nil {
		a.t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(a.server.Data), "pooler")
	ini := filepath.Join(dir, "pgbouncer.ini")
	if err == nil {
		err = os.WriteFile(ini, fmt.Appendf(nil, `[databases]
postgres = host=%s port=5432 user=%s
[pgbouncer]
listen_addr = %s
listen_port = 5432
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 50
# Its default of 15 s would be what a server's restart costs.
server_login_retry = 0.2
logfile = %s
`, a.net.hosts["db"], localpg.Superuser, a.net.hosts[poolerHost], filepath.Join(dir, "log")), 0o644)
	}
	if err == nil {
		err = localpg.MakeDir(dir)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	a.net.on(poolerHost, func() {
		a.pooler = exec.Command("pgbouncer", "-q", ini)
		a.pooler.SysProcAttr = &syscall.SysProcAttr{Credential: account}
		if err := a.pooler.Start(); err != nil {
			a.t.Error(err)
		}
	})
	a.awaitPort(poolerHost, "5432")
}

func (a *arena) stopPooler() {
	if a.pooler != nil && a.pooler.ProcessState == nil {
		_ = a.pooler.Process.Kill()
		_ = a.pooler.Wait()
	}
}

// awaitPort waits until somebody listens on a host.
func (a *arena) awaitPort(host, port string) {
	a.t.Helper()
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
		up := false
		a.net.on(host, func() {
			conn, err := net.Dial("tcp", net.JoinHostPort(a.net.hosts[host], port))
			if up = err == nil; up {
				_ = conn.Close()
			}
		})
		if up {
			return
		}
	}
	a.t.Fatalf("nobody listens on %s:%s", host, port)
}

// mayEnd notes that a contender that stays has a reason not to.
func (a *arena) mayEnd(pid int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ends[pid] = true
}

// Candidates who lost the lock try to connect again after at most 5 s, for at
// most 2 s; where it was the command that ended, or the guard, they pause for
// up to a minute before.
const (
	standsAfterLoss  = 5*time.Second + 2*time.Second + 2*time.Second
	standsAfterPause = time.Minute + standsAfterLoss
)

// awaitCandidates waits until every contender holds the lock or waits for it.
func (a *arena) awaitCandidates(within time.Duration) {
	a.t.Helper()
	var missing []string
	for began := time.Now(); time.Since(began) < within; time.Sleep(20 * time.Millisecond) {
		stand, err := a.server.Query("postgres", `SELECT DISTINCT host(client_addr) FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE locktype = 'advisory' AND client_addr IS NOT NULL`)
		if err != nil {
			continue
		}
		missing = slices.DeleteFunc(contenders(), func(host string) bool {
			return slices.Contains(stand, a.net.hosts[a.reaches(host)])
		})
		if len(missing) == 0 {
			return
		}
	}
	a.t.Errorf("not standing for election for %v: %s", within, strings.Join(missing, ", "))
}

// reaches is the host that the server sees a contender's connections from.
func (a *arena) reaches(host string) string {
	switch {
	case host == proxied:
		return relayHost
	case a.mode.pooled != nil && a.mode.pooled(host):
		return poolerHost
	}
	return host
}

// everyonesTurn ends commands well until each contender has had the lock: none
// starves, and no two wait for each other.
func (a *arena) everyonesTurn() {
	a.t.Helper()
	for began := time.Now(); ; {
		h := a.history(0)
		missing := slices.DeleteFunc(contenders(), func(host string) bool {
			return slices.ContainsFunc(h, func(l life) bool { return l.host == host })
		})
		if len(missing) == 0 {
			return
		}
		if time.Since(began) > 2*time.Minute {
			a.t.Errorf("never had the lock: %s", strings.Join(missing, ", "))
			return
		}
		a.inflict(faults()[0])
	}
}
