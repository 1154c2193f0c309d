package torture

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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
	// hasty: it strikes as soon as the leader's witnesses are there.
	hasty bool
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
		{name: "clean end at once", strike: signal(pglead, unix.SIGUSR1), unseats: true, pauses: true, hasty: true},
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
			_ = unix.Kill(l.guard, unix.SIGSTOP) // a heartbeat wakes it
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
			a.seen.excuse(l.token)
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
	by    string        // the host that this was on
	bound time.Duration // what that must not exceed
	load  float64       // of the machine
}

func (a *arena) inflict(f fault) event {
	a.t.Helper()
	if f.alone != nil {
		return f.alone(a)
	}
	if f.tears && !a.ledger {
		a.awaitInLine()
	}
	a.hasty = f.hasty
	l := a.awaitLeaderOn(a.mayStrike(f))
	a.hasty = false
	at := uptime()
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
		if next, ok := a.history(l.last).next(l.last, l.life); ok {
			e.next, e.by = next.first-at, next.host
			break
		}
		if uptime()-at > a.bound()+30*time.Second {
			h := a.history(0)
			h.sort()
			a.t.Errorf("%s at %v: nobody leads %v later; struck was %+v; last led %+v", f.name, at, uptime()-at, l, h[max(0, len(h)-3):])
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
