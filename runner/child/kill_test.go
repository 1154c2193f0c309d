package child_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

func TestKillReachesTheWholeTree(t *testing.T) {
	c, pids := startTree(t, child.Spec{}, 20)
	c.Kill()
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.ByOrder || int(r.Killed) < len(pids) {
		t.Errorf("%+v, want at least %d killed", r, len(pids))
	}
}

func TestDeadline(t *testing.T) {
	c, pids := startTree(t, child.Spec{Deadline: boottime.Now().Add(3 * time.Second)}, 3)
	renewed := boottime.Now().Add(4 * time.Second)
	c.Renew(renewed.Add(-500 * time.Millisecond))
	c.Renew(renewed)
	r := await(t, c)
	if boottime.Now() < renewed {
		t.Error("killed before the renewed deadline")
	}
	assertDead(t, pids)
	if r.Ending != child.LeaseOver {
		t.Errorf("%+v, want LeaseOver", r)
	}
}

func TestLostGrace(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Spec{LostGrace: time.Minute, MostGrace: time.Minute}, "catch", dir)
	awaitRecords(dir, 1)
	c.TellLost()
	if r := await(t, c); r.Status.ExitStatus() != int(unix.SIGTERM) {
		t.Errorf("%+v, want the status after SIGTERM", r)
	}

	c, pids := startTree(t, child.Spec{LostGrace: 100 * time.Millisecond}, 3)
	c.TellLost()
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.ByOrder {
		t.Errorf("%+v, want the guard to kill the tree when the grace is over", r)
	}

	// The lease's end ends the grace.
	began := boottime.Now()
	c, pids = startTree(t, child.Spec{LostGrace: time.Hour, Deadline: began.Add(2 * time.Second), MostGrace: time.Second}, 3)
	r = await(t, c)
	assertDead(t, pids)
	if r.Ending != child.LeaseOver || boottime.Now() < began.Add(3*time.Second) {
		t.Errorf("%+v after %v", r, boottime.Now().Sub(began))
	}
}

// startReluctant starts a command that notes each SIGTERM in a file, and goes on.
func startReluctant(t *testing.T, socket syscall.Conn, spec child.Spec) (c *child.Child, told func() bool) {
	t.Helper()
	dir := t.TempDir()
	spec.Path, spec.Args = "/bin/sh", []string{"sh", "-c", `trap ': >"$0"/told' TERM; : >"$0"/up; while :; do sleep 0.01; done`, dir}
	if spec.Deadline == 0 {
		spec.Deadline = far()
	}
	there := func(name string) func() bool {
		return func() bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		}
	}
	c, err := newGuard(t, socket).StartCommand(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Kill()
		<-c.Done()
	})
	testserver.Eventually(t, "the command runs", there("up"))
	return c, there("told")
}

// TestKillInGrace: an order to kill leaves no grace, also if the lock was lost before that. Then
// the loss is what has ended the tree.
func TestKillInGrace(t *testing.T) {
	for name, tt := range map[string]struct {
		lease  time.Duration
		ending child.Ending
	}{"before the loss": {time.Hour, child.ByOrder}, "after it": {3 * time.Second, child.LeaseOver}} {
		t.Run(name, func(t *testing.T) {
			c, told := startReluctant(t, nil, child.Spec{Deadline: boottime.Now().Add(tt.lease), LostGrace: time.Hour, MostGrace: time.Hour})
			if tt.ending == child.LeaseOver {
				testserver.Eventually(t, "the command is told of the loss", told)
			}
			c.Kill()
			if r := await(t, c); r.Ending != tt.ending || told() != (tt.ending == child.LeaseOver) {
				t.Errorf("%+v, told: %v", r, told())
			}
		})
	}
}

// TestStoppedInGrace: a command that is stopped is woken to end in its grace.
func TestStoppedInGrace(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Spec{LostGrace: time.Hour, MostGrace: time.Hour}, "catch", dir)
	awaitRecords(dir, 1)
	c.Signal(unix.SIGSTOP)
	if e := awaitEvent(t, c); !e.Stopped {
		t.Errorf("%+v, want the stop", e)
	}
	c.TellLost()
	if r := await(t, c); r.Status.ExitStatus() != int(unix.SIGTERM) {
		t.Errorf("%+v, want the status after SIGTERM", r)
	}
}

// TestGraceOfRenewed: the grace counts from the deadline as it was renewed, so pglead does not
// think that a guard which leaves it to the command is late.
func TestGraceOfRenewed(t *testing.T) {
	deadline := boottime.Now().Add(3 * time.Second)
	c, told := startReluctant(t, nil, child.Spec{Deadline: deadline, LostGrace: time.Hour, GuardPatience: time.Second})
	c.Renew(far())
	c.TellLost()
	testserver.Eventually(t, "the command is told", told)
	late := deadline.Add(1500 * time.Millisecond) // when pglead would kill the guard, and a little more
	for boottime.Now() < late {
		time.Sleep(boottime.Until(late))
	}
	c.Signal(unix.SIGKILL)
	if r := await(t, c); r.Ending != child.ByOrder {
		t.Errorf("%+v, want ByOrder", r)
	}
}

func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Spec{}, "leave", dir, "sleep")
	event := awaitEvent(t, c)
	pids := records(dir)
	if want := fmt.Sprintf("(%d)", pids[0]); !strings.Contains(event.Leftovers, want) {
		t.Errorf("leftovers %q, want %s among them", event.Leftovers, want)
	}
	r := await(t, c)
	assertDead(t, pids)
	if want := (child.Result{Ending: child.Exited, Status: 3 << 8}); r != want {
		t.Errorf("%+v, want the command's own status, and none that SIGKILL has ended", r)
	}
}

// TestBriefLeftovers: what outlives the command for an instant is not left over. A busy machine may
// take longer than that.
func TestBriefLeftovers(t *testing.T) {
	for range 50 {
		c, err := newGuard(t, nil).StartCommand(t.Context(), child.Spec{
			Path: "/bin/sh", Args: []string{"sh", "-c", "sleep 0.1 & exit 3"}, Env: []string{"PATH=" + os.Getenv("PATH")}, Deadline: far(),
		})
		if err != nil {
			t.Fatal(err)
		}
		if r := await(t, c); r != (child.Result{Ending: child.Exited, Status: 3 << 8}) {
			t.Errorf("%+v, want the command's own status", r)
		}
		if len(c.Events()) == 0 {
			return
		}
	}
	t.Error("all are left over")
}

func TestDeafLeftoversAreKilled(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Spec{}, "leave", dir, "deaf")
	r := await(t, c)
	assertDead(t, records(dir))
	if want := (child.Result{Ending: child.Exited, Status: 3 << 8, Killed: 1}); r != want {
		t.Errorf("%+v, want %+v", r, want)
	}
}

func TestWaitForLeftovers(t *testing.T) {
	dir := t.TempDir()
	c := startRole(t, child.Spec{WaitForLeftovers: true}, "leave", dir, "catch")
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

// TestOthersAreSkipped: where all descendants have to be listed to end what a dead guard has left,
// the commands of the other guards are left out.
func TestOthersAreSkipped(t *testing.T) {
	parents := map[int]int{
		10: 1, 11: 10, // a guard, and its command
		20: 1, 21: 20, 22: 21, // another
		30: 1, 31: 30, // what a dead guard has left
		40: 2, // a stranger
	}
	if got := child.Below(1, parents, 10, 20); !slices.Equal(got, []int{30, 31}) {
		t.Errorf("to kill: %v", got)
	}
	if got := child.Below(1, parents); !slices.Equal(got, []int{10, 11, 20, 21, 22, 30, 31}) {
		t.Errorf("all: %v", got)
	}
}

// BenchmarkKill measures from the decision to kill to the last of 300
// processes, half of them daemons, being dead and reaped.
func BenchmarkKill(b *testing.B) {
	var times []time.Duration
	for b.Loop() {
		dir := b.TempDir()
		g := newGuard(b, nil)
		c, err := g.StartCommand(b.Context(), child.Spec{
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
