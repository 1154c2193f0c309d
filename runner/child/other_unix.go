//go:build unix && !linux

package child

import (
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/checkup"
)

// checkProc has nothing to check: these systems list processes without /proc.
func checkProc() error { return nil }

// children lists all descendants, not only the direct ones, except those in skip and what is below
// them: here orphans may become init's children, so a process that is not killed together with its
// parent is lost.
func children(skip []int) (pids []int, err error) {
	all, err := processes()
	for _, p := range below(os.Getpid(), all, skip) {
		pids = append(pids, p.pid)
	}
	return pids, err
}

// openChildList is -1: there is no such list here.
func openChildList() int { return -1 }

func (g *guardProcess) children() []int {
	pids, _ := children(nil)
	return pids
}

// processes asks ps, which is POSIX: the kernel interfaces differ between systems.
func processes() (all []proc, err error) {
	ps := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "comm=")
	out, err := ps.Output()
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		pid, err1 := strconv.Atoi(fields[0])
		parent, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil && pid != ps.Process.Pid {
			all = append(all, proc{pid: pid, parent: parent, state: fields[2][0], name: strings.Join(fields[3:], " ")})
		}
	}
	return all, nil
}

func isStopped(pid int) bool {
	all, _ := processes()
	return slices.ContainsFunc(all, func(p proc) bool { return p.pid == pid && p.state == 'T' })
}

func survivors(skip []int) []proc { return descendants(skip) }

func tracer(int) int { return 0 }

// signalDescendant may hit another process that got the number in the meantime: there are no
// pidfds here.
func signalDescendant(p proc, sig unix.Signal) { _ = unix.Kill(p.pid, sig) }

// There are no control groups here.

func ownCgroup() string                        { return "" }
func newCgroup(string) string                  { return "" }
func makeCgroup(string) (*os.File, int)        { return nil, -1 }
func setCgroup(*syscall.SysProcAttr, *os.File) {}
func killCgroup(string)                        {}
func removeCgroup(string)                      {}

func examineProgram() checkup.Check { return checkup.Check{} } // Examine asks on Linux alone

func guardPrograms() []string {
	path, _ := os.Executable()
	return []string{path}
}

// setThreadName does nothing: argv[0] is all that a process can choose here.
func setThreadName(string) {}

func loosenTimers() (before string, restore func()) { return "", func() {} }
func setSlack(string)                               {}

func (g *guardProcess) firstInstants() (brief bool) { return false }

// closed is always false: see serverHungUp.
func closed(int) bool { return false }

// serverHungUp is nothing: without POLLRDHUP only the process that reads from a connection sees its
// end, and that is pglead.
const serverHungUp = 0

// watched is -1: without pidfds the guard looks again and again which children are dead.
func (g *guardProcess) watched() int { return -1 }

// defaultAction does nothing: signal.Reset, which was called before, is enough here.
func defaultAction(unix.Signal) error { return nil }

// ignoreStop catches SIGTSTP or SIGTTOU and does nothing about it. A new process has the default
// action for a signal that is caught here.
func ignoreStop(sig unix.Signal) (reset func()) {
	signal.Notify(make(chan os.Signal, 1), sig)
	return func() {}
}

// These are the requests to get and set a terminal's modes.
const (
	getModes = unix.TIOCGETA
	setModes = unix.TIOCSETA
)

// discardSignals catches the signals that would end this process and does nothing
// about them. Those that are ignored (nohup) stay so.
func discardSignals() {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

func realTimeSignals() []os.Signal { return nil }

func dumpNoCore() { _ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) }
