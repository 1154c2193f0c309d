package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// checkProc makes sure that /proc shows this process and its children.
func checkProc() error {
	self, err := os.Readlink("/proc/self")
	switch {
	case err != nil:
		return &NoProcError{"/proc is not mounted, without which it finds no process to kill"}
	case self != strconv.Itoa(os.Getpid()):
		return &NoProcError{"/proc is another PID namespace's: it finds no process to kill there"}
	}
	return nil
}

// becomeSubreaper makes this process the parent of every descendant whose own
// parent dies, daemons that forked twice included (PR_SET_CHILD_SUBREAPER(2)).
// That is what makes a tree something that can be killed whole: whoever it
// was that started a process, it ends up as a child here.
func becomeSubreaper() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// setThreadName changes what pkill and killall match, if the calling thread is
// the process's first (PR_SET_NAME(2const)).
func setThreadName(name string) {
	if terminated, err := unix.BytePtrFromString(name); err == nil {
		_, _, _ = unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(terminated)), 0)
	}
}

// children lists this process's direct children. They can be signalled by
// number without danger: until this process reaps them, nobody else gets it.
func children() []int {
	// Most have none, which this tells without a look at each thread.
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil); errors.Is(err, unix.ECHILD) {
		return nil
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	var pids []int
	for _, task := range tasks { // each thread has children of its own (proc(5))
		list, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			return childrenByScan()
		}
		for _, field := range strings.Fields(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// childrenByScan does without CONFIG_PROC_CHILDREN.
func childrenByScan() []int {
	var pids []int
	for _, p := range processes() {
		if p.parent == os.Getpid() {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// processes reads the whole process table.
func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			all = append(all, p)
		}
	}
	return all
}

func readProcess(pid int) (process, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	// "pid (name) state ppid …", and a name may contain anything (proc(5)).
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return process{}, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	const threads = 17 // num_threads
	if len(fields) <= threads || len(fields[0]) != 1 {
		return process{}, false
	}
	p := process{pid: pid, state: fields[0][0], name: string(stat[open+1 : end])}
	if p.parent, err = strconv.Atoi(fields[1]); err == nil {
		p.threads, err = strconv.Atoi(fields[threads])
	}
	return p, err == nil
}

// remains lists what is left below this process: what is alive or, if nothing was
// seen to be, the children that the kernel knows of all the same. While the whole
// table is read, what forks and exits all the time gets out of sight; one of its
// line is always a direct child.
func remains(skip []int) []process {
	found := descendants(skip)
	const most = 20 // looks for one that is alive
	for range most {
		if slices.ContainsFunc(found, process.alive) {
			break
		}
		found = found[:0]
		for _, pid := range children() {
			if p, ok := readProcess(pid); ok && !slices.Contains(skip, pid) {
				found = append(found, p)
			}
		}
	}
	if slices.ContainsFunc(found, process.alive) {
		found = slices.DeleteFunc(found, func(p process) bool { return !p.alive() })
	}
	return found
}

// tracer is the process that traces another, as a debugger does, or 0. What it
// traces can't be reaped before it lets go (ptrace(2)).
func tracer(pid int) int { return statusNumber(statusNumber(pid, "TracerPid"), "Tgid") } // from thread to process

// statusNumber reads a number from /proc/PID/status, or 0.
func statusNumber(pid int, name string) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "\n"+name+":")
	number, _, _ := strings.Cut(after, "\n")
	n, _ := strconv.Atoi(strings.TrimSpace(number))
	return n
}

// signalDescendant signals a process that is not a direct child, whose number
// may belong to a stranger by now: a pidfd pins it, and only if what is pinned
// still has the same parent is it the one that was meant.
func signalDescendant(p process, sig unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return // gone, or a kernel before 5.3: the rounds will reach it
	}
	defer unix.Close(fd)
	if now, ok := readProcess(p.pid); ok && (now.parent == p.parent || now.parent == os.Getpid()) {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// hangup closes the channel that it returns when the other end has closed the
// connection. It takes the kernel's word without reading from the socket,
// which pglead does.
func hangup(socket int) <-chan struct{} {
	closed := make(chan struct{})
	if socket < 0 {
		return closed
	}
	go func() {
		fds := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLRDHUP}}
		for {
			n, err := unix.Poll(fds, -1)
			if err == unix.EINTR || err == unix.EAGAIN {
				continue
			}
			if err != nil || n > 0 {
				close(closed)
				return
			}
		}
	}()
	return closed
}

// defaultAction gives a signal back its default action, for the whole process
// and past Go's runtime, whose own signal.Reset leaves its handler in place for
// signals that it treats specially, such as SIGPIPE and SIGQUIT. All zeros is
// SIG_DFL with no flags and an empty mask on every Linux (rt_sigaction(2)).
func defaultAction(sig unix.Signal) error {
	_, err := setAction(sig, 0)
	return err
}

// ignore is SIG_IGN.
const ignore = 1

// setAction returns what the action was before.
func setAction(sig unix.Signal, handler uintptr) (old uintptr, err error) {
	var action, before [64]byte
	*(*uintptr)(unsafe.Pointer(&action)) = handler
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), uintptr(unsafe.Pointer(&before)), 8, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return *(*uintptr)(unsafe.Pointer(&before)), nil
}

// ignoreStop keeps the terminal, or anyone else, from stopping this process with
// its group until it is about to start the command: for SIGTSTP Go's runtime has
// no handler that would make place for the default action in a new process.
func ignoreStop() (reset func()) {
	old, err := setAction(unix.SIGTSTP, ignore)
	if err != nil {
		return func() {}
	}
	return func() { _, _ = setAction(unix.SIGTSTP, old) }
}

// discardSignals makes the signals that would end this process come to nothing,
// for this process alone: of those that Go's runtime has a handler for, which is
// all of them but a SIGHUP or SIGINT that was ignored at the start, it restores
// the default action in a new process (runtime.clearSignalHandlers; TestDispositions watches it).
// SIGUSR1, SIGALRM and the like have a handler that does nothing.
//
// os/signal would do, but goes to a thread of its own and back for each signal,
// which takes the start of the guard half a millisecond.
func discardSignals() {
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		if _, err := setAction(sig, ignore); err != nil && !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// dumpNoCore keeps this process from leaving a core file: the limit does for
// files, the flag for the programs that core_pattern pipes to (core(5)).
func dumpNoCore() {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
