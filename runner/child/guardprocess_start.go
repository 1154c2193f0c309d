package child

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
)

// start receives the request and starts the command.
func (g *guardProcess) start() error {
	k, body, err := readMessage(blocking{g.fd})
	if err != nil || k != msgStart {
		removeCgroup(g.cgroup)
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
	g.req, g.deadline = req, time.Duration(req.deadline)
	if err := g.timer.Set(g.deadline); err != nil {
		return err
	}
	if boottime.Now() >= g.deadline {
		// pglead was stopped before it wrote this, or slow: somebody else may have
		// the lock.
		removeCgroup(g.cgroup)
		_ = writeNumber(g.control, msgFailed, tooLate)
		return ErrTooLate
	}
	if g.req.keepGuard != 0 {
		if err := g.leave(); err != nil {
			return err
		}
	}
	g.resetStop()
	// Up to here the guard is in pglead's process group, and there the command
	// starts, too: in a group of its own it could neither read from the terminal
	// nor be stopped by Ctrl-Z. A guard that is to have several commands is in a
	// session of its own by now, and each of them in a group of its own: so what one
	// does to its group reaches no other.
	g.pid, err = g.execute(&syscall.ProcAttr{Env: g.req.env, Files: []uintptr{0, 1, 2}, Sys: g.attributes()})
	if err != nil {
		removeCgroup(g.cgroup)
		errno := syscall.EINVAL
		_ = errors.As(err, &errno)
		_ = writeNumber(g.control, msgFailed, int64(errno))
		return err
	}
	if g.req.keepGuard != 0 {
		g.resetStop = ignoreStop()
	}
	if err := g.leave(); err != nil {
		return err
	}
	if err := writeNumber(g.control, msgStarted, int64(g.pid)); err != nil {
		g.kill(PgleadGone)
	}
	return nil
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
	attr.Setpgid = g.req.keepGuard != 0
	return attr
}

// execute starts the command, if possible in its control group.
func (g *guardProcess) execute(attr *syscall.ProcAttr) (pid int, err error) {
	if g.cgroupDir != nil {
		defer g.cgroupDir.Close()
		setCgroup(attr.Sys, g.cgroupDir)
		pid, err := syscall.ForkExec(g.req.path, g.req.args, attr)
		if err == nil {
			return pid, nil
		}
		// The kernel may have refused the group, and may not refuse the command.
		attr.Sys = g.attributes()
		removeCgroup(g.cgroup)
		g.cgroup = ""
	}
	pid, err = syscall.ForkExec(g.req.path, g.req.args, attr)
	if errors.Is(err, syscall.ENOEXEC) {
		// A script without #! is the shell's, as for execvp(3).
		args := append([]string{"sh", g.req.path}, g.req.args[1:]...)
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
