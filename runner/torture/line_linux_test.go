package torture

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/advisory"
)

// end is what those in line learn of a leader's end.
type end int

const (
	unheard end = iota // nothing: it is waited out
	said               // a last word
	silent             // that it says nothing more
)

// slack is more than a busy machine takes for anything, and less than a lock-delay:
// whoever waits that out, although it need not, is noticed.
const slack = 1500 * time.Millisecond

// within is how soon the contract has somebody else lead after a fault.
func (a *arena) within(f fault) time.Duration {
	bound := a.bound()
	switch {
	case f.within > 0:
		bound = f.within
	case a.unaccounted():
	case a.mode.heeds && f.end == said:
		bound = slack + a.lostGrace
	case a.mode.heeds && f.end == silent:
		bound = max(a.lease*2/3+a.lostGrace, a.lockDelay) + 2*time.Second
	}
	return bound + a.forged()
}

// unaccounted says whether a waiter was killed as its session had drawn a token: its
// start has been announced, and nobody can say that it came to nothing. A newcomer's
// first try doesn't mind. Whoever stands in line waits it out, once.
func (a *arena) unaccounted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.started[a.killed]
}

// accounted notes that a lock-delay was waited out, if one was.
func (a *arena) accounted(e event) {
	if e.next >= a.lockDelay {
		a.killed = ""
	}
}

// bound is the contract's: longer than this nobody waits for a lock whose
// holder is gone.
func (a *arena) bound() time.Duration { return a.lease + a.lockDelay + 2*time.Second + a.mode.polls }

// ids are the numbers of the mode's locks, and those of the locks in whose lines
// others wait for them.
func (m mode) ids() (locks, lines []lockkey.ID) {
	for _, name := range m.names() {
		locks = append(locks, number(name))
	}
	if m.slots > 0 {
		return locks, []lockkey.ID{number("torture")}
	}
	return locks, locks
}

// terminate ends the sessions of those who hold a lock. Tickets are locks, too, and
// those who wait are left alone.
func (a *arena) terminate() {
	locks, _ := a.mode.ids()
	if a.peers { // psql's
		locks = []lockkey.ID{{Number: 1}}
	}
	var list []string
	for _, id := range locks {
		list = append(list, fmt.Sprintf("(%d, %d)", id.ClassID(), id.ObjID()))
	}
	if _, err := a.server.Query("postgres", "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND (classid::bigint, objid::bigint) IN ("+
		strings.Join(list, ", ")+")"); err != nil {
		a.t.Error(err)
	}
}

// waiter is one who has a ticket.
type waiter struct {
	backend string
	host    string
	pglead  int
}

// inLine are those with a ticket for one of the locks, the first first.
func (a *arena) inLine() (all []waiter) {
	_, lines := a.mode.ids()
	var classes []string
	for _, id := range lines {
		classes = append(classes, strconv.FormatUint(uint64(advisory.TicketClass(id)), 10))
	}
	rows, err := a.server.Query("postgres", `SELECT pid || ' ' || host(client_addr) FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND classid::bigint IN (`+strings.Join(classes, ", ")+") AND client_addr IS NOT NULL ORDER BY objid::bigint")
	if err != nil {
		a.t.Error(err)
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, row := range rows {
		backend, address, _ := strings.Cut(row, " ")
		for _, host := range contenders() {
			if a.net.hosts[a.reaches(host)] == address && a.pids[host] != 0 {
				all = append(all, waiter{backend, host, a.pids[host]})
			}
		}
	}
	return all
}

// lineFaults strike those who wait, as the lock comes to them.
func lineFaults(a *arena) []fault {
	if !a.mode.lined {
		return nil
	}
	var struck []int // those that are frozen
	thaw := func(a *arena, _ leader) {
		for _, pid := range struck {
			_ = unix.Kill(pid, unix.SIGCONT)
		}
		struck = nil
	}
	freeze := func(pid int) {
		_ = unix.Kill(pid, unix.SIGSTOP)
		struck = append(struck, pid)
	}
	const frozen = unheard // who is frozen as it tries has the lock for a lease
	endsWell := func(l leader) { _ = unix.Kill(l.pglead, unix.SIGUSR1) }
	return []fault{
		{name: "first in line frozen, then clean end", unseats: true, pauses: true, end: frozen, strike: func(a *arena, l leader) {
			if line := a.inLine(); len(line) > 0 {
				freeze(line[0].pglead)
			}
			endsWell(l)
		}, mend: thaw},
		{name: "two in line frozen, then SIGKILL of pglead", unseats: true, end: frozen, strike: func(a *arena, l leader) {
			line := a.inLine()
			for _, w := range line[:min(2, len(line))] {
				freeze(w.pglead)
			}
			a.mayEnd(l.pglead)
			_ = unix.Kill(l.pglead, unix.SIGKILL)
		}, mend: thaw},
		{name: "SIGKILL of the named waiter", unseats: true, pauses: true, strike: func(a *arena, l leader) {
			if w, ok := a.named(l, endsWell); ok {
				a.mayEnd(w.pglead)
				_ = unix.Kill(w.pglead, unix.SIGKILL)
				a.killed = w.backend
			}
		}},
		{name: "SIGSTOP of the named waiter", unseats: true, pauses: true, strike: func(a *arena, l leader) {
			if w, ok := a.named(l, endsWell); ok {
				freeze(w.pglead)
			}
		}, mend: func(a *arena, l leader) {
			time.Sleep(time.Duration(a.rand.Int64N(int64(2 * a.lease))))
			thaw(a, l)
		}},
	}
}

// named ends a leader's tenure and returns who is told that it is next, as soon as
// that is said.
func (a *arena) named(l leader, finish func(leader)) (waiter, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	to := make(chan string, 100)
	conn, err := a.hears(ctx, a.server.DSN("postgres"), func(n *pgconn.Notification) {
		if _, pid, ok := strings.Cut(n.Payload, " to="); ok && strings.HasPrefix(n.Payload, "clean ") {
			to <- strings.Fields(pid + " ")[0]
		}
	})
	if err != nil {
		a.t.Error(err)
		return waiter{}, false
	}
	defer conn.Close(ctx)
	line := a.inLine()
	finish(l)
	within, cancelWait := context.WithTimeout(ctx, time.Second)
	defer cancelWait()
	for conn.WaitForNotification(within) == nil {
		select {
		case backend := <-to:
			i := slices.IndexFunc(line, func(w waiter) bool { return w.backend == backend })
			if i < 0 { // a stranger with a ticket
				return waiter{}, false
			}
			return line[i], true
		default:
		}
	}
	return waiter{}, false // nobody was in line, or somebody else was struck
}
