package child_test

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
)

func TestExitStatus(t *testing.T) {
	for _, want := range []int{0, 1, 42, 255} {
		r := await(t, startRole(t, child.Spec{}, "exit", strconv.Itoa(want)))
		if r.Status.ExitStatus() != want || r.Ending != child.Exited {
			t.Errorf("exit %d: %+v", want, r)
		}
	}
}

func TestDeathBySignal(t *testing.T) {
	for _, want := range []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGSEGV, unix.SIGPIPE, unix.SIGQUIT, unix.SIGUSR1, unix.SIGHUP, unix.SIGINT} {
		r := await(t, startRole(t, child.Spec{}, "die", strconv.Itoa(int(want))))
		if !r.Status.Signaled() || r.Status.Signal() != want || r.Status.CoreDump() {
			t.Errorf("death by %v: %+v", want, r)
		}
	}
}

// TestEndsAtAnyTime: no end of the command is overlooked, however soon after the start it comes.
func TestEndsAtAnyTime(t *testing.T) {
	for after := time.Duration(0); after < 40*time.Millisecond; after += time.Millisecond / 2 {
		c, err := newGuard(t, nil).StartCommand(t.Context(), child.Spec{
			Path: "/bin/sleep", Args: []string{"sleep", fmt.Sprintf("%f", after.Seconds())}, Deadline: far(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if result := await(t, c); result.Ending != child.Exited || result.Status.ExitStatus() != 0 {
			t.Errorf("a command of %v: %+v", after, result)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("GOMAXPROCS", "7")
	file := filepath.Join(t.TempDir(), "env")
	await(t, startRole(t, child.Spec{}, "environ", file))
	env, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(env), "GOMAXPROCS=7") {
		t.Error("the command's GOMAXPROCS is not the user's")
	}
}

func TestSignals(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGUSR1} {
		dir := t.TempDir()
		c := startRole(t, child.Spec{}, "catch", dir)
		awaitRecords(dir, 1)
		c.Signal(sig)
		if r := await(t, c); r.Status.ExitStatus() != int(sig) {
			t.Errorf("signal %v: %+v", sig, r)
		}
	}
}

// TestDispositions: the guard ignores signals that the command must not, and
// what this process ignores (nohup) stays ignored.
func TestDispositions(t *testing.T) {
	signal.Ignore(unix.SIGHUP)
	t.Cleanup(func() { signal.Reset(unix.SIGHUP) })
	file := filepath.Join(t.TempDir(), "status")
	c, err := newGuard(t, nil).StartCommand(t.Context(), child.Spec{
		Path: "/bin/sh", Args: []string{"sh", "-c", "exec grep -E '^Sig(Ign|Blk)' /proc/self/status >" + file},
		Deadline: boottime.Now().Add(time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, c)
	status, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var ignored, blocked uint64
	if _, err := fmt.Sscanf(string(status), "SigBlk: %x\nSigIgn: %x", &blocked, &ignored); err != nil {
		t.Fatalf("%v in %q", err, status)
	}
	if want := uint64(1) << (unix.SIGHUP - 1); ignored != want || blocked != 0 {
		t.Errorf("the command ignores %#x and blocks %#x, want %#x and none", ignored, blocked, want)
	}
}

func TestCommandThatCannotBeExecuted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no-interpreter")
	if err := os.WriteFile(file, []byte("#!/nosuch\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := newGuard(t, nil)
	_, err := g.StartCommand(t.Context(), child.Spec{Path: file, Args: []string{file}, Deadline: far()})
	var lookup *child.LookupError
	if !errors.As(err, &lookup) {
		t.Fatalf("Start: %v, want a LookupError", err)
	}
}

// TestScriptWithoutInterpreterLine: execvp gives such a file to the shell.
func TestScriptWithoutInterpreterLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte("exit $1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := newGuard(t, nil)
	c, err := g.StartCommand(t.Context(), child.Spec{Path: file, Args: []string{file, "5"}, Deadline: far()})
	if err != nil {
		t.Fatal(err)
	}
	if r := await(t, c); r.Status.ExitStatus() != 5 {
		t.Errorf("%+v, want status 5", r)
	}
}

// TestTooLarge: what is more than a guard takes is refused as by the kernel, and no guard is blamed for
// that.
func TestTooLarge(t *testing.T) {
	_, err := newGuard(t, nil).StartCommand(t.Context(), child.Spec{
		Path: "/bin/true", Args: []string{"true", strings.Repeat("x", 17<<20)}, Deadline: far(),
	})
	if !errors.As(err, new(*child.LookupError)) || err.Error() != "run true: argument list too long" {
		t.Errorf("it is started: %v", err)
	}
}

// TestTooLate: a command is not started after the deadline, whether that had passed before the
// guard was asked, or passed before the guard came to it.
func TestTooLate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "started")
	late := child.Spec{Path: "/bin/touch", Args: []string{"touch", file}, Deadline: boottime.Now().Add(-1)}
	if _, err := newGuard(t, nil).StartCommand(t.Context(), late); !errors.Is(err, child.ErrLeaseOver) {
		t.Errorf("the guard is asked to start it: %v", err)
	}
	if err := child.AskToStart(newGuard(t, nil), late); !errors.Is(err, child.ErrLeaseOver) {
		t.Errorf("the guard starts it: %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the command ran")
	}
}
