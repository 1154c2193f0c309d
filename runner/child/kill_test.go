package child_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
)

func TestKillReachesTheWholeTree(t *testing.T) {
	c, pids := startTree(t, child.Config{}, 20)
	c.Kill()
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.ByOrder || r.Killed < len(pids) {
		t.Errorf("%+v, want at least %d killed", r, len(pids))
	}
}

func TestDeadline(t *testing.T) {
	c, pids := startTree(t, child.Config{Deadline: boottime.Now().Add(3 * time.Second)}, 3)
	c.Renew(boottime.Now().Add(4 * time.Second))
	renewed := boottime.Now().Add(3 * time.Second)
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
	c := startRole(t, child.Config{LostGrace: time.Minute, MostGrace: time.Minute}, "catch", dir)
	awaitRecords(dir, 1)
	c.TellLost()
	if r := await(t, c); r.Status.ExitStatus() != int(unix.SIGTERM) {
		t.Errorf("%+v, want the status after SIGTERM", r)
	}

	c, pids := startTree(t, child.Config{LostGrace: 100 * time.Millisecond}, 3)
	c.TellLost()
	await(t, c)
	assertDead(t, pids)

	// The lease's end ends the grace.
	began := boottime.Now()
	c, pids = startTree(t, child.Config{LostGrace: time.Hour, Deadline: began.Add(2 * time.Second), MostGrace: time.Second}, 3)
	r := await(t, c)
	assertDead(t, pids)
	if r.Ending != child.LeaseOver || boottime.Now() < began.Add(3*time.Second) {
		t.Errorf("%+v after %v", r, boottime.Now().Sub(began))
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
		c, err := g.StartCommand(b.Context(), child.Config{
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
