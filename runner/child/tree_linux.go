package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

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

// children lists this process's direct children except those in skip. It is safe to signal them by
// number: until this process reaps them, no other process gets that number. It fails if /proc can't
// be read, for instance because this process or the whole machine is out of descriptors.
func children(skip []int) (pids []int, err error) {
	// Most processes have no children, and this call says so without a look at each thread.
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil); errors.Is(err, unix.ECHILD) {
		return nil, nil
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, err
	}
	for _, task := range tasks { // each thread has children of its own (proc(5))
		list, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err != nil {
			return childrenByScan(skip)
		}
		pids = append(pids, numbers(list, skip)...)
	}
	return pids, nil
}

// openChildList opens the list of the calling thread's children, or returns -1. In a guard that is
// the first thread, and the list has all of the guard's children: this thread starts the command,
// and the kernel makes a subreaper's first living thread the parent of orphans (find_new_reaper in
// kernel/exit.c).
func openChildList() int {
	fd, err := unix.Open("/proc/thread-self/children", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// children lists the guard's direct children. It opens no file if childList is open.
func (g *guardProcess) children() []int {
	if g.childList < 0 {
		pids, _ := children(nil) // only ECHILD is the end: see reapChildren
		return pids
	}
	var list []byte
	for part := make([]byte, 4096); ; {
		n, err := unix.Pread(g.childList, part, int64(len(list)))
		switch {
		case err == unix.EINTR:
		case err != nil || n == 0:
			return numbers(list, nil)
		default:
			list = append(list, part[:n]...)
		}
	}
}

// numbers are the process numbers in a list of children, except those in skip.
func numbers(list []byte, skip []int) (pids []int) {
	for _, field := range strings.Fields(string(list)) {
		if pid, err := strconv.Atoi(field); err == nil && !slices.Contains(skip, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// childrenByScan is children for kernels without CONFIG_PROC_CHILDREN.
func childrenByScan(skip []int) (pids []int, err error) {
	all, err := processes()
	for _, p := range all {
		if p.parent == os.Getpid() && !slices.Contains(skip, p.pid) {
			pids = append(pids, p.pid)
		}
	}
	return pids, err
}

// processes reads the whole process table.
func processes() (all []proc, err error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := readStat(pid)
		switch {
		case err == nil:
			all = append(all, p)
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM): // others: it is gone, or hidden
			return nil, err
		}
	}
	return all, nil
}

func readStat(pid int) (proc, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return proc{}, err
	}
	// "pid (name) state ppid …", and a name may contain anything (proc(5)).
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return proc{}, errStat
	}
	fields := strings.Fields(string(stat[end+1:]))
	const threads = 17 // num_threads
	if len(fields) <= threads || len(fields[0]) != 1 {
		return proc{}, errStat
	}
	p := proc{pid: pid, state: fields[0][0], name: string(stat[open+1 : end])}
	if p.parent, err = strconv.Atoi(fields[1]); err == nil {
		p.threads, err = strconv.Atoi(fields[threads])
	}
	return p, err
}

var errStat = errors.New("not the form of proc(5)")

func isStopped(pid int) bool {
	p, err := readStat(pid)
	return err == nil && p.state == 'T'
}

// survivors lists the processes below this one that are alive. If it sees none, it goes through the
// direct children that the kernel knows, up to one that is alive. Reading the whole process table
// can miss a process that forks and exits all the time, but at each moment one of its descendants
// is a direct child: the latest, so that comes first. Those before it are dead by then, and may be
// thousands, since nobody reaps them meanwhile.
func survivors(skip []int) []proc {
	found := descendants(skip)
	const most = 20 // how often to look for one that is alive
	for range most {
		if slices.ContainsFunc(found, proc.alive) {
			break
		}
		found = found[:0]
		pids, _ := children(skip)
		for _, pid := range slices.Backward(pids) {
			if p, err := readStat(pid); err == nil {
				found = append(found, p)
				if p.alive() {
					break
				}
			} else if errors.Is(unix.Kill(pid, 0), unix.EPERM) {
				found = append(found, proc{pid: pid, parent: os.Getpid(), state: '?', name: "one that /proc hides"}) // from other users (hidepid of proc(5))
			}
		}
	}
	if slices.ContainsFunc(found, proc.alive) {
		found = slices.DeleteFunc(found, func(p proc) bool { return !p.alive() })
	}
	return found
}

// tracer is the process that traces another, as a debugger does, or 0. A process
// that is traced can't be reaped before its tracer lets go (ptrace(2)).
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

// signalDescendant signals a process that may not be a direct child, so its number may by
// now belong to another process. Therefore it opens a pidfd, and signals the process only if
// its parent is still the same, or is this process.
//
// Where there are no pidfds (a kernel before 5.3, a container that is refused them) it signals this
// process's own children, whose numbers are certain. The others become such children when their
// parents die, and then the rounds of a kill reach them.
func signalDescendant(p proc, sig unix.Signal) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err == nil {
		defer unix.Close(fd)
	}
	now, failed := readStat(p.pid)
	own := failed == nil && now.parent == os.Getpid()
	if err == nil && (own || failed == nil && now.parent == p.parent) {
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if err != nil && own {
		_ = unix.Kill(p.pid, sig)
	}
}

// becomeSubreaper makes this process the parent of every descendant whose own parent dies,
// even of daemons that forked twice (PR_SET_CHILD_SUBREAPER(2)). So the whole tree can be
// killed: each of its processes ends up as a child here.
func becomeSubreaper() error {
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

// commandAttributes makes the kernel kill the command when the guard dies. An exec of a
// setuid program undoes that (PR_SET_PDEATHSIG(2const)).
func commandAttributes(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, PidFD: pidfd}
}

// guardAttributes make the kernel send SIGCONT to the guard when this process dies, so that a
// stopped guard goes on. The SIGCONT also comes when only the thread that started the guard ends,
// but it does nothing to a guard that runs.
func guardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: unix.SIGCONT} }
