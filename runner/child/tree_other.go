//go:build unix && !linux

package child

import (
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// checkProc: these systems are asked for processes without /proc.
func checkProc() error { return nil }

// setThreadName: argv[0] is all that these systems let a process choose.
func setThreadName(string) {}

// discardSignals catches, for nobody, the signals that would end this process,
// but for those that are ignored (nohup).
func discardSignals() {
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM} {
		if !signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// children lists all descendants, not only the direct ones: where orphans go
// to init, whoever is not killed together with its parent is lost.
func children() []int {
	var pids []int
	for _, p := range descendants(nil) {
		pids = append(pids, p.pid)
	}
	return pids
}

// processes asks ps, which is POSIX, in place of a kernel interface a system.
func processes() []process {
	ps := exec.Command("ps", "-A", "-o", "pid=", "-o", "ppid=", "-o", "stat=", "-o", "comm=")
	out, err := ps.Output()
	if err != nil {
		return nil
	}
	var all []process
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		pid, err1 := strconv.Atoi(fields[0])
		parent, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil && pid != ps.Process.Pid {
			all = append(all, process{pid: pid, parent: parent, state: fields[2][0], name: strings.Join(fields[3:], " ")})
		}
	}
	return all
}

func remains(skip []int) []process { return descendants(skip) }

func tracer(int) int { return 0 }

// signalDescendant has no pidfd here to make sure that a number has not been
// taken over by a stranger since the process table was read.
func signalDescendant(p process, sig unix.Signal) { _ = unix.Kill(p.pid, sig) }

// hangup: without POLLRDHUP the end of a connection can't be seen unless it is
// read from, which is pglead's business.
func hangup(int) <-chan struct{} { return nil }

// defaultAction: signal.Reset, which comes before, has to do.
func defaultAction(unix.Signal) error { return nil }

func dumpNoCore() { _ = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}) }

func selfExe() string {
	path, _ := os.Executable()
	return path
}

func isStopped(pid int) bool {
	for _, p := range processes() {
		if p.pid == pid {
			return p.state == 'T'
		}
	}
	return false
}

func (g *guard) firstInstants() {}

// ignoreStop has SIGTSTP caught, for nobody. In a new process that has its default
// action.
func ignoreStop() (reset func()) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGTSTP)
	return func() {}
}

// Control groups are Linux's.
func ownCgroup() string                        { return "" }
func newCgroup(string) string                  { return "" }
func makeCgroup(string) *os.File               { return nil }
func setCgroup(*syscall.SysProcAttr, *os.File) {}
func killCgroup(string)                        {}
func removeCgroup(string)                      {}

func realTimeSignals() []os.Signal { return nil }
