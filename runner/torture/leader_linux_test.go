package torture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// history is of the lives that lasted beyond an instant.
func (a *arena) history(since time.Duration) history {
	a.t.Helper()
	h, err := a.seen.history(since)
	if err != nil {
		a.t.Fatal(err)
	}
	for i := range h {
		h[i].shared = a.mode.reads != nil && a.mode.reads(h[i].host)
	}
	return h
}

// leader is who leads, with all of its witnesses.
type leader struct {
	life
	pglead, guard int
}

// living are those who lead now. Somebody who has just died still looks alive,
// but for the one who came after.
func (a *arena) living() history {
	now := uptime()
	all := a.history(now - time.Second)
	return slices.DeleteFunc(slices.Clone(all), func(l life) bool {
		return l.excused || now-l.last > 100*time.Millisecond || slices.ContainsFunc(all, func(later life) bool {
			return later.first > l.first && (later.excludes(l) || later.host == l.host)
		})
	})
}

// settled is longer than a named waiter tries, in one statement. Whoever starts and ends
// while it does is unknown to it, and costs it a lock-delay.
const settled = 300 * time.Millisecond

// leader is one of those who lead now, on a host that the condition allows.
func (a *arena) leader(strikes func(host string) bool) (leader, error) {
	h := slices.DeleteFunc(a.living(), func(l life) bool {
		brief := !l.complete || !a.hasty && uptime()-l.first < settled
		return brief || strikes != nil && !strikes(l.host)
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
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pglead))
	if err != nil {
		return 0, err
	}
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		for _, child := range strings.Fields(string(children)) {
			if name, _ := os.ReadFile("/proc/" + child + "/comm"); string(name) == "lease-guard\n" {
				return strconv.Atoi(child)
			}
		}
	}
	return 0, errors.New("no guard")
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
		if !slices.ContainsFunc(fellows, func(l life) bool { return !l.complete }) {
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
