package child

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// start receives the request and starts the command.
//
// Up to the start the guard is in pglead's process group, and there the command starts,
// too: in a group of its own it could neither read from the terminal nor be stopped by
// Ctrl-Z. A guard that is to have several commands leaves before, and gives each of them
// a group of its own: so what one does to its group reaches no other.
func (g *guardProcess) start() (err error) {
	if err := g.receive(); err != nil {
		removeCgroup(g.cgroup)
		return err
	}
	if boottime.Now() >= g.deadline || closed(g.socket) {
		// pglead was stopped before it wrote this, or this process before it read it, or
		// either was slow: somebody else may have the lock.
		return g.refuse(tooLate, 0, ErrTooLate)
	}
	if g.req.KeepGuard {
		if err := g.leave(); err != nil {
			return err
		}
	}
	g.resetStop()
	born := boottime.Now()
	if g.pid, err = g.execute(&syscall.ProcAttr{Env: g.req.Env, Files: []uintptr{0, 1, 2}, Sys: g.attributes()}); err != nil {
		errno := syscall.EINVAL
		_ = errors.As(err, &errno)
		return g.refuse(int64(errno), born, err)
	}
	if g.req.KeepGuard {
		g.resetStop = ignoreStop()
	}
	if err := g.leave(); err != nil {
		return err
	}
	if err := writeStartAnswer(g.control, msgStarted, int64(g.pid), born); err != nil {
		g.kill(PgleadGone)
	}
	return nil
}

// receive takes a request, and begins a new turn if it is not the first one.
func (g *guardProcess) receive() error {
	k, body, err := readMessage(blocking{g.fd})
	if err != nil || k != msgStart {
		return fmt.Errorf("no start request: %w", err)
	}
	var req startRequest
	if err := req.decode(body); err != nil {
		return err
	}
	if g.pid != 0 {
		g.turn = newTurn(req.cgroup)
		g.readRenewals() // those are for a command that is dead
	}
	g.req, g.deadline = req, req.Deadline
	return g.timer.Set(g.deadline)
}

// refuse tells pglead why the command does not start, which was to be made at born.
func (g *guardProcess) refuse(why int64, born boottime.Instant, err error) error {
	removeCgroup(g.cgroup)
	_ = writeStartAnswer(g.control, msgFailed, why, born)
	return err
}

// leave gives the guard a session of its own, in which no signal for pglead's group
// reaches it. A group of its own would not do: as a parent in another group of the
// same session it would keep pglead's group from being orphaned (setpgid(2)), and when
// the guard is gone, and pglead is stopped, the kernel would send that group, cron's
// shell and all, SIGHUP.
func (g *guardProcess) leave() error {
	if g.apart {
		return nil
	}
	if _, err := unix.Setsid(); err != nil {
		return fmt.Errorf("setsid: %w", err)
	}
	g.apart = true
	return nil
}

// attributes are those with which the command starts.
func (g *guardProcess) attributes() *syscall.SysProcAttr {
	attr := commandAttributes(&g.pidfd)
	attr.Setpgid = g.req.KeepGuard
	return attr
}

// execute starts the command, if possible in its control group.
func (g *guardProcess) execute(attr *syscall.ProcAttr) (pid int, err error) {
	if g.cgroupDir != nil {
		defer g.cgroupDir.Close()
		setCgroup(attr.Sys, g.cgroupDir)
		pid, err := syscall.ForkExec(g.req.Path, g.req.Args, attr)
		if err == nil {
			return pid, nil
		}
		// The kernel may have refused the group, and may not refuse the command.
		attr.Sys = g.attributes()
		removeCgroup(g.cgroup)
		g.cgroup = ""
	}
	pid, err = syscall.ForkExec(g.req.Path, g.req.Args, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		// A script without #! is the shell's, as for execvp(3).
		args := append([]string{"sh", g.req.Path}, g.req.Args[1:]...)
		pid, err = syscall.ForkExec("/bin/sh", args, attr)
	}
	return pid, err
}

// blocking reads and writes a descriptor on the calling thread. An init has a thread
// to itself, so each goroutine that waits for another, or for Go's poller, takes one
// more thread, and until the command starts the guard has nothing else to do.
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
