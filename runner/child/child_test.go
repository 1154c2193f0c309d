package child_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/checkup"
	"github.com/pglead/pglead/runner/child"
)

// TestMain lets the test binary be the misbehaving commands.
func TestMain(m *testing.M) {
	if role := os.Getenv("CHILD_TEST_ROLE"); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// play is what the commands under test do.
func play(role string, args []string) int {
	switch role {
	case "exit":
		status, _ := strconv.Atoi(args[0])
		return status
	case "die":
		sig, _ := strconv.Atoi(args[0])
		child.DieOf(unix.Signal(sig))
	case "environ":
		_ = os.WriteFile(args[0], []byte(strings.Join(os.Environ(), "\n")), 0o600)
	case "sleep":
		record(args[0])
		time.Sleep(time.Hour)
	case "deaf": // to all that can be ignored
		signal.Ignore(unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
		record(args[0])
		time.Sleep(time.Hour)
	case "catch": // one signal, and say which
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, unix.SIGTERM, unix.SIGUSR1)
		record(args[0])
		sig := (<-caught).(unix.Signal)
		return int(sig)
	case "tree": // breadth children of which each has a daemon
		breadth, _ := strconv.Atoi(args[1])
		for range breadth {
			spawn("fork", args[0], "setsid")
		}
		spawn("deaf", args[0])
		record(args[0])
		time.Sleep(time.Hour)
	case "fork": // a daemon: in a session of its own, its parent gone
		spawnIn(&syscall.SysProcAttr{Setsid: true}, "deaf", args[0])
	case "leave": // something behind
		spawn(args[1], args[0])
		awaitRecords(args[0], 1)
		return 3
	}
	return 0
}

func spawn(role string, args ...string) { spawnIn(nil, role, args...) }

func spawnIn(attr *syscall.SysProcAttr, role string, args ...string) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "CHILD_TEST_ROLE="+role)
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

// record leaves this process's number in a directory.
func record(dir string) {
	if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(os.Getpid())), nil, 0o600); err != nil {
		panic(err)
	}
}

func records(dir string) []int {
	entries, err := os.ReadDir(dir)
	if err != nil {
		panic(err)
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			panic(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

const patience = 30 * time.Second

func awaitRecords(dir string, n int) []int {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		if pids := records(dir); len(pids) >= n {
			return pids
		}
	}
	panic(fmt.Sprintf("%d of %d processes started", len(records(dir)), n))
}

func far() time.Duration { return boottime.Now() + time.Hour }

func startRole(t *testing.T, cfg child.Config, role string, args ...string) *child.Child {
	t.Helper()
	return startRoleWith(t, nil, cfg, role, args...)
}

func newGuard(tb testing.TB, socket syscall.Conn) *child.Guard {
	tb.Helper()
	guards, err := child.NewGuards()
	if err != nil {
		tb.Fatal(err)
	}
	g, err := guards.New(socket)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func startRoleWith(t *testing.T, socket syscall.Conn, cfg child.Config, role string, args ...string) *child.Child {
	t.Helper()
	cfg.Path = "/proc/self/exe"
	cfg.Args = append([]string{"command"}, args...)
	cfg.Env = append(os.Environ(), "CHILD_TEST_ROLE="+role)
	if cfg.Deadline == 0 {
		cfg.Deadline = far()
	}
	g := newGuard(t, socket)
	c, err := g.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Kill()
		<-c.Done()
	})
	return c
}

func await(t *testing.T, c *child.Child) child.Result {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("the child never ends")
	}
	return c.Result()
}

func awaitEvent(t *testing.T, c *child.Child) child.Event {
	t.Helper()
	select {
	case e := <-c.Events():
		return e
	case <-time.After(patience):
		t.Fatal("no event")
		panic("unreachable")
	}
}

// assertDead fails for a process that lives at this moment: no waiting here,
// since Done has promised it.
func assertDead(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d is not dead and reaped: %v", pid, err)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, want := range []int{0, 1, 42, 255} {
		r := await(t, startRole(t, child.Config{}, "exit", strconv.Itoa(want)))
		if r.Status.ExitStatus() != want || r.Ending != child.Exited {
			t.Errorf("exit %d: %+v", want, r)
		}
	}
}

func TestDeathBySignal(t *testing.T) {
	for _, want := range []unix.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGSEGV, unix.SIGPIPE, unix.SIGQUIT, unix.SIGUSR1, unix.SIGHUP, unix.SIGINT} {
		r := await(t, startRole(t, child.Config{}, "die", strconv.Itoa(int(want))))
		if !r.Status.Signaled() || r.Status.Signal() != want || r.Status.CoreDump() {
			t.Errorf("death by %v: %+v", want, r)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("GOMAXPROCS", "7")
	file := filepath.Join(t.TempDir(), "env")
	await(t, startRole(t, child.Config{}, "environ", file))
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
		c := startRole(t, child.Config{}, "catch", dir)
		awaitRecords(dir, 1)
		c.Signal(sig)
		if r := await(t, c); r.Status.ExitStatus() != int(sig) {
			t.Errorf("signal %v: %+v", sig, r)
		}
	}
}

// treeSize counts a tree's processes that leave a record: the root, its deaf
// child, and the daemons.
func treeSize(breadth int) int { return breadth + 2 }

func startTree(t *testing.T, cfg child.Config, breadth int) (*child.Child, []int) {
	t.Helper()
	return startTreeWith(t, nil, cfg, breadth)
}

func startTreeWith(t *testing.T, socket syscall.Conn, cfg child.Config, breadth int) (*child.Child, []int) {
	t.Helper()
	dir := t.TempDir()
	c := startRoleWith(t, socket, cfg, "tree", dir, strconv.Itoa(breadth))
	return c, awaitRecords(dir, treeSize(breadth))
}

func TestKillReachesTheWholeTree(t *testing.T) {
	c, pids := startTree(t, child.Config{}, 20)
	c.Kill()
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.Killed || r.Killed < len(pids) {
		t.Errorf("%+v, want at least %d killed", r, len(pids))
	}
}

func TestDeadline(t *testing.T) {
	c, pids := startTree(t, child.Config{Deadline: boottime.Now() + 3*time.Second}, 3)
	c.Renew(boottime.Now() + 4*time.Second)
	renewed := boottime.Now() + 3*time.Second
	r := await(t, c)
	if boottime.Now() < renewed {
		t.Error("killed before the renewed deadline")
	}
	assertDead(t, pids)
	if r.Ending != child.LeaseOver {
		t.Errorf("%+v, want LeaseOver", r)
	}
}

// TestSocket: the guard's duplicate keeps the connection open, it sees the
// peer's end by itself, and it ends the connection when it has killed for it.
func TestSocket(t *testing.T) {
	here, there := socketPair(t)
	c, pids := startTreeWith(t, here, child.Config{}, 3)
	if err := here.Close(); err != nil {
		t.Fatal(err)
	}
	if err := there.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read after this process closed its end: %v; the guard should hold it open", err)
	}
	if err := there.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.SocketClosed {
		t.Errorf("%+v, want SocketClosed", r)
	}
	if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the tree's death: %v, want the end of the stream", err)
	}
}

func socketPair(t *testing.T) (here *net.TCPConn, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	there, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), there.Close() })
	return here, there
}

func TestLostGrace(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Config{LostGrace: time.Minute, LeaseGrace: time.Minute}, "catch", dir)
	awaitRecords(dir, 1)
	c.Lose()
	if r := await(t, c); r.Status.ExitStatus() != int(unix.SIGTERM) {
		t.Errorf("%+v, want the status after SIGTERM", r)
	}

	c, pids := startTree(t, child.Config{LostGrace: 100 * time.Millisecond}, 3)
	c.Lose()
	await(t, c)
	assertDead(t, pids)

	// The lease's end ends the grace.
	began := boottime.Now()
	c, pids = startTree(t, child.Config{LostGrace: time.Hour, Deadline: began + 2*time.Second, LeaseGrace: time.Second}, 3)
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.LeaseOver || boottime.Now() < began+3*time.Second {
		t.Errorf("%+v after %v", r, boottime.Now()-began)
	}
}

// TestGuardKilled: this process inherits the tree and finishes the job, and
// leaves alone what it had started before.
func TestGuardKilled(t *testing.T) {
	bystander := exec.Command("sleep", "3600")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = bystander.Process.Kill()
		_ = bystander.Wait()
	}()
	c, pids := startTree(t, child.Config{}, 5)
	if err := unix.Kill(child.GuardPID(c), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r := await(t, c)
	assertDead(t, pids)
	if !r.GuardDied {
		t.Errorf("%+v, want GuardDied", r)
	}
	if err := unix.Kill(bystander.Process.Pid, 0); err != nil {
		t.Errorf("the bystander: %v", err)
	}
}

func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Config{}, "leave", dir, "sleep")
	event := awaitEvent(t, c)
	pids := records(dir)
	if want := fmt.Sprintf("(%d)", pids[0]); !strings.Contains(event.Leftovers, want) {
		t.Errorf("leftovers %q, want %s among them", event.Leftovers, want)
	}
	r := await(t, c)
	assertDead(t, pids)
	if r.Status.ExitStatus() != 3 || r.Ending != child.Exited {
		t.Errorf("%+v, want the command's own status", r)
	}
}

func TestDeafLeftoversAreKilled(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Config{}, "leave", dir, "deaf")
	r := await(t, c)
	assertDead(t, records(dir))
	if r.Status.ExitStatus() != 3 || r.Killed != 1 {
		t.Errorf("%+v, want status 3 and 1 killed", r)
	}
}

func TestWaitForLeftovers(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Config{WaitForLeftovers: true}, "leave", dir, "catch")
	awaitEvent(t, c)
	pids := records(dir)
	select {
	case <-c.Done():
		t.Fatal("done while a process is alive")
	default:
	}
	if err := unix.Kill(pids[0], unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if r := await(t, c); r.Status.ExitStatus() != 3 {
		t.Errorf("%+v, want status 3", r)
	}
}

func TestCommandThatCannotBeExecuted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no-interpreter")
	if err := os.WriteFile(file, []byte("#!/nosuch\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	g := newGuard(t, nil)
	_, err := g.Start(t.Context(), child.Config{Path: file, Args: []string{file}, Deadline: far()})
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
	c, err := g.Start(t.Context(), child.Config{Path: file, Args: []string{file, "5"}, Deadline: far()})
	if err != nil {
		t.Fatal(err)
	}
	if r := await(t, c); r.Status.ExitStatus() != 5 {
		t.Errorf("%+v, want status 5", r)
	}
}

// TestUnusedGuard: a guard that was started ahead of time leaves nothing.
func TestUnusedGuard(t *testing.T) {
	here, there := socketPair(t)
	g := newGuard(t, here)
	_ = here.Close()
	g.Close()
	if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := there.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read after the guard's end: %v, want the end of the stream", err)
	}
}

func TestLookup(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run": 0o755, "data": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/nosuch:"+dir)
	for _, tt := range []struct {
		name, want string
		notFound   bool
	}{
		{"run", dir + "/run", false},
		{dir + "/run", dir + "/run", false},
		{"data", "", false},
		{"folder", "", false},
		{"nosuch", "", true},
		{dir + "/nosuch", "", true},
		{dir + "/data/x", "", true},
		{"", "", true},
	} {
		got, err := child.Lookup(tt.name)
		var lookup *child.LookupError
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("Lookup(%q) = %q, %v; want %q", tt.name, got, err, tt.want)
		} else if errors.As(err, &lookup) && lookup.NotFound != tt.notFound {
			t.Errorf("Lookup(%q): NotFound is %v", tt.name, lookup.NotFound)
		}
	}
}

// BenchmarkKill measures from the decision to kill to the last of 300
// processes, half of them daemons, being dead and reaped.
func BenchmarkKill(b *testing.B) {
	var times []time.Duration
	for b.Loop() {
		dir := b.TempDir()
		g := newGuard(b, nil)
		c, err := g.Start(b.Context(), child.Config{
			Path: "/bin/sh", Deadline: far(), Args: []string{"sh", "-c", `
				i=0; while [ $i -lt 149 ]; do sleep 1000 & (setsid sleep 1000 &); i=$((i+1)); done; touch "$0"; sleep 1000`, dir + "/ready"},
		})
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err := os.Stat(dir + "/ready"); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		decided := time.Now()
		c.Kill()
		<-c.Done()
		times = append(times, time.Since(decided))
		if c.Result().Killed < 290 {
			b.Fatalf("only %d processes", c.Result().Killed)
		}
	}
	slices.Sort(times)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(times[len(times)-1].Microseconds())/1000, "max-ms")
}

// TestTooLate: a command is not started after the deadline, however it passed.
func TestTooLate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "started")
	g := newGuard(t, nil)
	_, err := g.Start(t.Context(), child.Config{Path: "/bin/touch", Args: []string{"touch", file}, Deadline: boottime.Now() - 1})
	if err == nil {
		t.Error("started after the deadline")
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the command ran")
	}
}

// TestStoppedGuard: what the guard doesn't do, this process does.
func TestStoppedGuard(t *testing.T) {
	c, pids := startTree(t, child.Config{}, 5)
	if err := unix.Kill(child.GuardPID(c), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	c.Lose()
	r := await(t, c)
	assertDead(t, pids)
	if !r.GuardDied {
		t.Errorf("%+v, want GuardDied", r)
	}
}

func TestExamine(t *testing.T) {
	names := map[string]checkup.Status{}
	for _, c := range child.Examine() {
		names[c.Name] = c.Status
		t.Logf("%-4s  %-10s  %s -> %s", c.Status, c.Name, c.Seen, c.Advice)
		if c.Status == checkup.Fail {
			t.Errorf("%s fails", c.Name)
		}
	}
	if names["guard"] != checkup.OK && runtime.GOOS == "linux" {
		t.Error("the guard was not tried")
	}
}

// TestEndsAtAnyTime: no end of the command is overlooked, at whatever moment of the
// guard's first ones it comes.
func TestEndsAtAnyTime(t *testing.T) {
	for after := time.Duration(0); after < 40*time.Millisecond; after += time.Millisecond / 2 {
		c, err := newGuard(t, nil).Start(t.Context(), child.Config{
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

// TestUnstoppedGuard: what stops the group doesn't stop a guard that waits for its
// request, and what does doesn't keep it from being closed.
func TestUnstoppedGuard(t *testing.T) {
	g := newGuard(t, nil)
	pid := child.UnusedPID(g)
	ignores := func() bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			t.Fatal(err)
		}
		_, mask, _ := strings.Cut(string(status), "\nSigIgn:")
		var ignored uint64
		_, _ = fmt.Sscanf(mask, "%x", &ignored)
		return ignored&(1<<(unix.SIGTSTP-1)) != 0
	}
	for began := time.Now(); !ignores(); time.Sleep(time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatal("the guard can be stopped")
		}
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	g.Close()
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the guard is still there: %v", err)
	}
}

// TestDispositions: the guard ignores signals that the command must not, and
// what this process ignores (nohup) stays ignored.
func TestDispositions(t *testing.T) {
	signal.Ignore(unix.SIGHUP)
	t.Cleanup(func() { signal.Reset(unix.SIGHUP) })
	file := filepath.Join(t.TempDir(), "status")
	c, err := newGuard(t, nil).Start(t.Context(), child.Config{
		Path: "/bin/sh", Args: []string{"sh", "-c", "exec grep -E '^Sig(Ign|Blk)' /proc/self/status >" + file},
		Deadline: boottime.Now() + time.Minute,
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
