package child

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// How to kill a tree, by a guard or in its place.
const (
	// A kill that has not emptied the tree is repeated after retryFirst,
	// then at twice the interval, up to retryMost.
	retryFirst = time.Millisecond
	retryMost  = 100 * time.Millisecond
	// A tree that is alive after deepRounds rounds may be deep: a round reaches only one level of
	// it. One that is alive after stubbornRounds rounds may fork faster than it is killed. What is
	// left after unkillableAfter is reported.
	deepRounds      = 3
	stubbornRounds  = 30
	unkillableAfter = time.Second
	// deathPatience is about how long a guard that was killed may take to die. After that, what is
	// below it is killed first.
	deathPatience = 20 * time.Millisecond
	// stopRoundMost limits one attempt to stop a tree that forks and exits all the time,
	// and killRoundMost one round of kills.
	stopRoundMost = 500 * time.Millisecond
	killRoundMost = 20 * time.Millisecond
	// killWord, written to a control group's cgroup.kill, kills all in the group.
	killWord = "1"
)

type proc struct {
	pid, parent int
	state       byte // as ps and proc(5) have it: Z is a zombie, T is stopped, D waits uninterruptibly
	threads     int
	name        string
}

// alive is also true if the first thread has ended and others go on, although such a
// process looks like a zombie.
func (p proc) alive() bool { return p.state != 'Z' && p.state != 'X' || p.threads > 1 }

// descendants lists the living processes below this one, except those in skip and
// what is below them.
func descendants(skip []int) []proc {
	all, _ := processes()
	return below(os.Getpid(), all, skip)
}

// below picks a process's living descendants out of all processes, except those in skip and what is
// below them.
func below(root int, all []proc, skip []int) []proc {
	byParent := map[int][]proc{}
	for _, p := range all {
		byParent[p.parent] = append(byParent[p.parent], p)
	}
	var found []proc
	queue := []int{root}
	for len(queue) > 0 {
		for _, p := range byParent[queue[0]] {
			if slices.Contains(skip, p.pid) {
				continue
			}
			queue = append(queue, p.pid)
			if p.alive() {
				found = append(found, p)
			}
		}
		queue = queue[1:]
	}
	return found
}

// stopDescendants stops everything below this process until nothing new shows up. Then
// even a tree that forks faster than it is killed holds still.
func stopDescendants(skip []int) {
	stopped := map[int]bool{}
	for began, progress := time.Now(), true; progress && time.Since(began) < stopRoundMost; {
		progress = false
		for _, p := range descendants(skip) {
			if !stopped[p.pid] {
				signalDescendant(p, unix.SIGSTOP)
				stopped[p.pid], progress = true, true
			}
		}
	}
}

// killBelow is one round of a kill of all that is below this process, except what is in skip. It
// kills the direct children. Their children become direct ones, which the next round kills. In
// round deepRounds it kills all descendants, so that a deep tree takes no round for each of its
// levels. It returns the children that are not reaped yet.
func killBelow(round int, list func() []int, skip []int) (left []int) {
	if round%stubbornRounds == stubbornRounds-1 {
		stopDescendants(skip)
	}
	left = killChildren(list)
	if round == deepRounds {
		signalAll(descendants(skip), unix.SIGKILL)
	}
	return left
}

// killChildren kills the direct children, and new ones as long as they show up: the
// children of the first, and processes that fork and exit faster than the rounds follow
// each other. It returns those that are not reaped yet.
func killChildren(list func() []int) (left []int) {
	killed := map[int]bool{}
	for began, progress := time.Now(), true; progress && time.Since(began) < killRoundMost; {
		progress, left = false, left[:0]
		for _, pid := range list() {
			left = append(left, pid)
			if !killed[pid] {
				_ = unix.Kill(pid, unix.SIGKILL)
				killed[pid], progress = true, true
			}
		}
	}
	return left
}

// signalAll signals these processes of the tree. None of them has to be a direct child.
func signalAll(list []proc, sig unix.Signal) {
	for _, p := range list {
		signalDescendant(p, sig)
	}
}

// nameProcs names processes for a message: sleep (123), sh (124) and 3 more. It says whether a
// process is dead but can't be reaped, which process traces it, and what more, unless it is nil,
// says of it.
func nameProcs(list []proc, more func(proc) string) string {
	const most = 5
	var names []string
	for i, p := range list {
		if i == most {
			return fmt.Sprintf("%s and %d more", strings.Join(names, ", "), len(list)-most)
		}
		name := fmt.Sprintf("%s (%d", withoutControls(p.name), p.pid)
		if !p.alive() {
			name += ", dead"
		}
		if by := tracer(p.pid); by != 0 {
			name += fmt.Sprintf(", traced by process %d", by)
		}
		if more != nil {
			name += more(p)
		}
		names = append(names, name+")")
	}
	return strings.Join(names, ", ")
}

// keptAlive says what keeps SIGKILL from ending a process, if that can be seen: it is another
// user's, or in an uninterruptible wait, mostly for a disk or a network file system.
func (p proc) keptAlive() string {
	switch {
	case errors.Is(unix.Kill(p.pid, 0), unix.EPERM):
		return ", another user's"
	case p.state == 'D':
		return ", state D"
	}
	return ""
}

// withoutControls keeps the control characters of a process's name out of messages.
func withoutControls(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
