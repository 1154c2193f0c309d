package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
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

// TestUnstartedNamesDatabase: a rejected statement is told with its key, its database, its status and
// its hint.
func TestUnstartedNamesDatabase(t *testing.T) {
	database, err := session.ParseDSN("postgresql://cron@db.example/app", "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	err = session.Rejected(&pgconn.PgError{Code: session.LockNotAvailable, Message: "canceled"}, "lock nightly")
	err = unstarted(err, "the command", database)
	if want := "the command was not started: lock nightly: canceled (55P03), says db.example:5432/app"; err.Error() != want {
		t.Errorf("it says %q, want %q", err, want)
	}
	if code, hint := status(err); code != exitUnreachable || !strings.HasPrefix(hint, "another session is in the way: ") {
		t.Errorf("exit status %d, hint %q", code, hint)
	}
}

// TestSecondSignal: what goes on after a first signal is ended at once by a second one.
func TestSecondSignal(t *testing.T) {
	const deaf = "TEST_DEAF"
	if os.Getenv(deaf) != "" {
		_ = untilSignal(func(ctx context.Context) error {
			_ = unix.Kill(os.Getpid(), unix.SIGTERM)
			<-ctx.Done()
			_ = unix.Kill(os.Getpid(), unix.SIGTERM)
			time.Sleep(10 * time.Second)
			return nil
		})
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), deaf+"=yes")
	out, _ := cmd.CombinedOutput()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGTERM || len(out) > 0 {
		t.Errorf("%v: %s", cmd.ProcessState, out)
	}
}
