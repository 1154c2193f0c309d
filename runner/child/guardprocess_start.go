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
	if err := g.req.decode(body); err != nil {
		return err
	}
	if err := g.deadline.Set(time.Duration(g.req.deadline)); err != nil {
		return err
	}
	if int64(boottime.Now()) >= g.req.deadline {
		// pglead was stopped before it wrote this, or slow: somebody else may have
		// the lock.
		removeCgroup(g.cgroup)
		_ = writeNumber(g.control, msgFailed, tooLate)
		return ErrTooLate
	}
	g.resetStop()
	// Up to here the guard is in pglead's process group, and there the command
	// starts, too: in a group of its own it could neither read from the terminal
	// nor be stopped by Ctrl-Z.
	g.pid, err = g.execute(&syscall.ProcAttr{Env: g.req.env, Files: []uintptr{0, 1, 2}, Sys: commandAttributes(&g.pidfd)})
	if err != nil {
		removeCgroup(g.cgroup)
		errno := syscall.EINVAL
		_ = errors.As(err, &errno)
		_ = writeNumber(g.control, msgFailed, int64(errno))
		return err
	}
	// From here on the guard has a session of its own, in which no signal for
	// the group reaches it. A group of its own would not do: as a parent in
	// another group of the same session it would keep pglead's group from
	// being orphaned (setpgid(2)), and when the guard is gone, and pglead is stopped,
	// the kernel would send that group, cron's shell and all, SIGHUP.
	if _, err := unix.Setsid(); err != nil {
		return fmt.Errorf("setsid: %w", err)
	}
	if err := writeNumber(g.control, msgStarted, int64(g.pid)); err != nil {
		g.end(PgleadGone)
	}
	return nil
}

// execute starts the command, in a control group of its own if that can be.
func (g *guardProcess) execute(attr *syscall.ProcAttr) (pid int, err error) {
	if g.cgroupDir != nil {
		defer g.cgroupDir.Close()
		setCgroup(attr.Sys, g.cgroupDir)
		pid, err := syscall.ForkExec(g.req.path, g.req.args, attr)
		if err == nil {
			return pid, nil
		}
		// The kernel may have refused the group, and may not refuse the command.
		attr.Sys = commandAttributes(&g.pidfd)
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
