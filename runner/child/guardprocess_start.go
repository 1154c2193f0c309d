package child

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// start receives the request and starts the command, and says whether it did.
//
// Until the start the guard is in pglead's process group. The command starts there, too: in a group
// of its own it could not read from the terminal, and Ctrl-Z would not stop it. A guard for several
// commands leaves the group first, and gives each command a group of its own, so that a signal to
// the group of one command reaches no other command.
func (g *guardProcess) start() (started bool) {
	if !g.receive() {
		removeCgroup(g.cgroup)
		return false
	}
	if boottime.Now() >= g.deadline || closed(g.socket) {
		// pglead or this process was stopped or slow, and another process may have the lock.
		g.refuse(tooLate, 0)
		return false
	}
	if g.spec.KeepGuard && !g.leaveSession() {
		return false
	}
	g.resetStop()
	born := boottime.Now()
	var err error
	if g.pid, err = g.execute(); err != nil {
		errno := syscall.EINVAL
		_ = errors.As(err, &errno)
		g.refuse(int64(errno), born)
		return false
	}
	if !g.leaveSession() {
		return false
	}
	if err := writeStartAnswer(blocking{g.fd}, msgStarted, int64(g.pid), born); err != nil {
		g.orphaned = true
		g.beginKill(pgleadGone)
	}
	return true
}

// receive reads a request to start, and says whether there was one. If it is not the first, receive
// forgets the previous command.
func (g *guardProcess) receive() bool {
	k, body, err := readMessage(blocking{g.fd})
	if err != nil && g.pid != 0 {
		g.releaseUntold(err) // of the previous command
	}
	var spec Spec
	if err != nil || k != msgStart || spec.decode(body) != nil {
		return false
	}
	if g.pid != 0 {
		g.commandTree = newCommandTree()
		g.readRenewals() // they are for a dead command
	}
	g.spec, g.deadline = spec, spec.Deadline
	return g.alarm.Set(g.deadline) == nil
}

// refuse tells pglead why the command does not start.
func (g *guardProcess) refuse(why int64, born boottime.Instant) {
	removeCgroup(g.cgroup)
	_ = writeStartAnswer(blocking{g.fd}, msgFailed, why, born)
}

// leaveSession gives the guard a session of its own, where no signal for pglead's group reaches it.
// A group of its own in the same session would not do. The kernel does not count pglead's group as
// orphaned while the command's parent, the guard, is in another group of the same session
// (setpgid(2)). If the guard then ended while pglead is stopped, the group would become orphaned,
// and the kernel would send SIGHUP to all of it, cron's shell included.
func (g *guardProcess) leaveSession() (left bool) {
	if !g.leftSession {
		_, err := unix.Setsid()
		g.leftSession = err == nil
	}
	return g.leftSession
}

// attributes are the system attributes for the start of the command.
func (g *guardProcess) attributes() *syscall.SysProcAttr {
	attr := commandAttributes(&g.pidfd)
	attr.Setpgid = g.spec.KeepGuard
	return attr
}

// execute starts the command, if possible in its control group.
func (g *guardProcess) execute() (pid int, err error) {
	attr := &syscall.ProcAttr{Env: g.spec.Env, Files: []uintptr{0, 1, 2}, Sys: g.attributes()}
	if g.cgroupDir != nil {
		setCgroup(attr.Sys, g.cgroupDir)
		if pid, err = g.fork(attr); err == nil {
			return pid, nil
		}
		// The kernel may have refused only the group: try without it.
		attr.Sys = g.attributes()
		_, _ = g.cgroupDir.Close(), unix.Close(g.cgroupKill)
		removeCgroup(g.cgroup)
		g.cgroup, g.cgroupDir, g.cgroupKill = "", nil, -1
	}
	return g.fork(attr)
}

func (g *guardProcess) fork(attr *syscall.ProcAttr) (pid int, err error) {
	pid, err = syscall.ForkExec(g.spec.Path, g.spec.Args, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		// The shell runs a script without #!, as with execvp(3).
		args := append([]string{"sh", g.spec.Path}, g.spec.Args[1:]...)
		pid, err = syscall.ForkExec("/bin/sh", args, attr)
	}
	return pid, err
}

// blocking reads and writes a descriptor on the calling thread. An init keeps its thread
// to itself, so a goroutine that waits for another one, or for Go's poller, would cost one
// more thread.
type blocking struct{ fd int }

func (b blocking) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(b.fd, p)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (b blocking) Write(p []byte) (written int, err error) {
	for written < len(p) && (err == nil || err == unix.EINTR) {
		n := 0
		n, err = unix.Write(b.fd, p[written:])
		written += max(0, n)
	}
	return written, err
}

// impatient writes to a socket. Where blocking would wait, impatient fails with EAGAIN. (Go's write
// deadlines would not do: on a busy machine a deadline may pass before the write begins.)
type impatient struct{ fd int }

func (i impatient) Write(p []byte) (int, error) {
	return unix.SendmsgN(i.fd, p, nil, nil, unix.MSG_DONTWAIT)
}
