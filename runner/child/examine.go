package child

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/checkup"
)

// Examine checks what a guard needs from this machine, and tries one.
func Examine() []checkup.Check {
	var list []checkup.Check
	add := func(name string, check checkup.Check) {
		check.Name = name
		list = append(list, check)
	}
	if runtime.GOOS != "linux" {
		add("guard", tryGuard())
	} else {
		seen := examineProc()
		add("/proc", seen)
		if seen.Status != checkup.Fail { // otherwise the trial would wait for processes that it can't find
			add("guard", tryGuard())
		}
		add("cgroup", examineCgroup())
		add("program", examineProgram())
	}
	add("limits", examineLimits())
	add("process", examineProcess(os.Getpid()))
	add("clock", examineClock())
	return list
}

// guardTrial is how long the trial's processes may take on a busy machine.
const guardTrial = 10 * time.Second

// tryGuard makes a guard run a command that leaves a daemon behind. The guard has to find and end
// the daemon, for which it needs the subreaper. To start, the guard needs the death signal, the
// boot time clock's timer and a second process.
func tryGuard() checkup.Check {
	const advice = "pglead starts no command without its guard: " +
		"does a sandbox (seccomp, a container's policy) or a limit on processes forbid it?"
	shell, err := Lookup("sh")
	if err != nil {
		return checkup.Notef("", "not tried: there is no sh on this machine")
	}
	began := time.Now()
	parent, err := NewParent(nil)
	if err != nil {
		return checkup.Failf(advice, "%s", err)
	}
	g, err := parent.StartGuard(nil)
	if err != nil {
		return checkup.Failf(advice, "%s", err)
	}
	c, err := g.StartCommand(context.Background(), Spec{
		Path: shell, Args: []string{"sh", "-c", "sleep 60 >/dev/null 2>&1 &"},
		Env:      []string{"PATH=" + os.Getenv("PATH")},
		Deadline: boottime.Now().Add(guardTrial),
	})
	if died := (*GuardError)(nil); errors.As(err, &died) {
		return checkup.Failf(cmp.Or(died.Hint, advice), "%s", err)
	}
	if err != nil {
		return checkup.Failf(advice, "%s", err)
	}
	<-c.Done()
	found := false
	for len(c.Events()) > 0 {
		e := <-c.Events()
		found = found || e.Leftovers != "" // on a busy machine it may still be the shell, not yet sleep
	}
	took := time.Since(began).Round(time.Millisecond)
	switch result := c.Result(); {
	case result.Ending == GuardDied:
		return checkup.Failf(killedHint, "the guard process died during the trial")
	case result.Ending != Exited:
		return checkup.Failf("is the machine overloaded?", "a trial of the guard took %v", took)
	case result.Status.ExitStatus() != 0:
		return checkup.Failf(advice, "a shell that was to start a daemon ended with exit status %d", result.Status.ExitStatus())
	case !found && (runtime.GOOS == "linux" || runtime.GOOS == "freebsd"):
		return checkup.Failf(advice, "the guard did not find a daemon that its command had left behind")
	case !found:
		const seen = "%s has no way to find a daemon whose parent is dead, and no signal for a parent's death"
		return checkup.Warningf("let the command start no daemons", seen, runtime.GOOS)
	}
	return checkup.Okf("subreaper and death signal are set; it found and ended a daemon that its command had left behind (%v)", took)
}

func examineProc() checkup.Check {
	const mount = "mount one of this PID namespace: mount -t proc proc /proc"
	if err := checkProc(); err != nil {
		return checkup.Failf(mount, "%s", err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return checkup.Failf(mount, "it is not complete: %s", err)
	}
	if _, err := os.ReadFile("/proc/self/task/" + tasks[0].Name() + "/children"); err != nil {
		return checkup.Notef("", "the kernel doesn't list a process's children: the guard reads the whole process table for them")
	}
	return checkup.Okf("the kernel lists a process's children")
}

func examineCgroup() checkup.Check {
	dir, kill := makeCgroup(newCgroup(ownCgroup()))
	if dir == nil {
		return checkup.Notef("", "no group of its own for the command (not root, or not delegated): it is killed process by process, which is as sure")
	}
	_, _ = dir.Close(), unix.Close(kill)
	removeCgroup(dir.Name())
	return checkup.Okf("each command gets a group of its own, killed at one stroke")
}

// few is how many open files, and processes, pglead, its guard and a small command need.
const few = 64

func examineLimits() checkup.Check {
	var files, processes unix.Rlimit
	if err := cmp.Or(unix.Getrlimit(unix.RLIMIT_NOFILE, &files), unix.Getrlimit(unix.RLIMIT_NPROC, &processes)); err != nil {
		return checkup.Notef("", "the limits are not known: %s", err)
	}
	seen := fmt.Sprintf("open files: %s; processes of this user: %s", limit(files.Cur), limit(processes.Cur))
	if files.Cur < few || processes.Cur < few && os.Geteuid() != 0 { // root is exempt
		return checkup.Warningf("raise them: ulimit -n and -u, LimitNOFILE= and LimitNPROC= of systemd", "%s", seen)
	}
	return checkup.Okf("%s", seen)
}

// limit is a resource limit in words; its type differs between systems.
func limit[T int64 | uint64](n T) string {
	if uint64(n) >= unix.RLIM_INFINITY {
		return "no limit"
	}
	return strconv.FormatUint(uint64(n), 10)
}

func examineProcess(pid int) checkup.Check {
	if pid == 1 {
		return checkup.Notef("start an init before it: docker run --init, or tini",
			"pglead is PID 1 here: other processes' orphans become its children, and it can't die of the signal that its command died of (it exits with 128+N)")
	}
	return checkup.Okf("not PID 1")
}

func examineClock() checkup.Check {
	up := time.Duration(boottime.Now())
	if runtime.GOOS != "linux" {
		return checkup.Notef("let the machine not sleep while commands run", "after a sleep the guard notices the end of a lease late")
	}
	var awake unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake); err != nil {
		return checkup.Notef("", "CLOCK_MONOTONIC: %s", err)
	}
	asleep := (up - time.Duration(awake.Nano())).Round(time.Second)
	return checkup.Okf("leases are counted on through suspend (asleep for %v of %v)", asleep, up.Round(time.Second))
}
