//go:build unix && !linux

package child

import (
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// checkProc has nothing to check: these systems list processes without /proc.
func checkProc() error { return nil }

// children lists all descendants, not only the direct ones: where orphans become
// init's children, a process that is not killed together with its parent is lost.
func children() []int {
	var pids []int
	for _, p := range descendants(nil) {
		pids = append(pids, p.pid)
	}
	return pids
}

// processes asks ps, which is POSIX, where each system has a kernel interface of its own.
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

func isStopped(pid int) bool {
	for _, p := range processes() {
		if p.pid == pid {
			return p.state == 'T'
		}
	}
	return false
}

func remains(skip []int) []process { return descendants(skip) }

func tracer(int) int { return 0 }

// signalDescendant may hit another process that has got the number meanwhile: there are
// no pidfds here.
func signalDescendant(p process, sig unix.Signal) { _ = unix.Kill(p.pid, sig) }
