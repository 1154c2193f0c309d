package cmd

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/session"
)

// TestStatusOfLoss: a session that is lost before the command starts is the database's fault,
// unless this process may open no more files. Guards that were killed before that make one look for
// what has killed them.
func TestStatusOfLoss(t *testing.T) {
	local := &session.LostError{Cause: fmt.Errorf("make a timer for the heartbeat: %w", os.NewSyscallError("timerfd_create", unix.EMFILE))}
	remote := &session.LostError{Cause: errors.New("the server closed the connection")}
	for _, tt := range []struct {
		err  error
		code int
		hint string
	}{
		{remote, exitUnreachable, ""},
		{local, exitInternal, "ulimit -n sets how many files pglead may have open"},
		{&runner.LockLostError{Cause: local}, exitLost, ""},
		{child.ErrNotStarted, exitInternal, child.ErrGuardDied.Hint},
	} {
		if code, hint := status(fmt.Errorf("nightly: %w", tt.err)); code != tt.code || hint != tt.hint {
			t.Errorf("%v: exit status %d, hint %q", tt.err, code, hint)
		}
	}
}
