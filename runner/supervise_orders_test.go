package runner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/visible"
)

// step is something that may happen to a command and its lock before the end.
type step struct {
	name    string
	happens func(*scene) // nil: it happens by itself when its time is over
	said    []string     // what the command is told then, and what is logged
	asked   Asked
}

// steps are all that may happen before the command's end.
func steps() []step {
	return []step{
		{"loss", loses(errCut), []string{
			"told of the loss",
			`level=INFO+2 msg="lock lost, killing the command" event=lost reason="the server does not answer"`,
			"hook: the server does not answer",
		}, 0},
		{"signal", sends(unix.SIGTERM), []string{"forward SIGTERM", "observer: interrupted"}, BySignal},
		{"timeout", nil, []string{
			"signal SIGTERM", "signal SIGCONT",
			`level=ERROR msg="the command ran for all of the TIMEOUT that --timeout allows; sending SIGTERM" event=timeout`,
		}, ByTimeout},
		{"step-down", asksToStepDown, []string{
			"signal SIGTERM", "signal SIGCONT",
			`level=WARN msg="asked to step down by root@elsewhere; sending SIGTERM" event=stepping_down by=root@elsewhere`,
		}, ByStepDown},
		{"kill-after", nil, []string{
			"kill",
			`level=ERROR msg="the command did not end after SIGTERM; killing it and all that it started" event=killed`,
		}, 0},
	}
}

// orders are all orders in which some of the steps, or none, can happen. Before kill-after, a step
// has to ask the command to end.
func orders() (all [][]step) {
	var walk func(before, left []step, asked Asked)
	walk = func(before, left []step, asked Asked) {
		all = append(all, slices.Clone(before))
		for i, next := range left {
			if next.name == "kill-after" && asked == 0 {
				continue
			}
			rest := slices.Delete(slices.Clone(left), i, i+1)
			walk(append(slices.Clone(before), next), rest, asked|next.asked)
		}
	}
	walk(nil, steps(), 0)
	return all
}

// times says when each of n steps happens, and then the end. Each gap is longer than all later gaps
// together. So a kill-after that fires at its place in the order does not fire again before the
// end.
func times(n int) (at []time.Duration) {
	var now time.Duration
	for i := range n + 1 {
		now += time.Second << (n - i)
		at = append(at, now)
	}
	return at
}

// TestEveryOrder has loss, signal, timeout, kill-after and a request to step down happen before the
// command's end in every order, each of them or not. What a step leads to does not depend on
// earlier steps, and the outcome has all of them.
func TestEveryOrder(t *testing.T) {
	all := orders()
	if len(all) != 245 {
		t.Fatalf("%d orders", len(all))
	}
	for _, order := range all {
		var names []string
		for _, step := range order {
			names = append(names, step.name)
		}
		t.Run(strings.Join(append(names, "end"), ","), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { inOrder(t, order) })
		})
	}
}

func inOrder(t *testing.T, order []step) {
	t.Helper()
	s := newScene()
	s.run.cfg.KillAfterSignal, s.run.cfg.KillAfterTimeout = time.Hour, time.Hour
	at := times(len(order))
	end := at[len(order)]
	result := child.Result{Ending: child.Exited, Status: exitStatus(3)}
	last := fmt.Sprintf(`%v level=INFO msg="command ended" event=exited ran=%v status="exit status 3"`, end, end)
	want := expectation{outcome: Outcome{Status: result.Status, Ran: end}}
	var said strings.Builder
	var incidents []incident
	var limit *time.Duration // the setting that says when the command is killed
	var limited time.Duration
	for i, step := range order {
		switch step.name {
		case "loss":
			result = child.Result{Ending: child.ByOrder, Killed: 2}
			last = fmt.Sprintf(`%v level=INFO msg="command killed" event=killed ran=%v processes=2`, end, end)
			want.outcome.Status, want.outcome.Ran = 0, 0
			want.err = "*runner.LockLostError: the lock in db:5432/app was lost (last known held 9s before): the server does not answer; " +
				"the command (process 4711) was killed with all that it had started, 2 processes"
		case "timeout":
			s.run.cfg.Timeout = at[i]
			if limit == nil {
				limit, limited = &s.run.cfg.KillAfterTimeout, at[i]
			}
		case "signal", "step-down":
			if limit == nil {
				limit, limited = &s.run.cfg.KillAfterSignal, at[i]
			}
		case "kill-after":
			*limit = at[i] - limited
		}
		if step.happens != nil {
			incidents = append(incidents, incident{at[i], step.happens})
		}
		want.outcome.Asked |= step.asked
		for _, line := range step.said {
			fmt.Fprintf(&said, "%v %s\n", at[i], strings.ReplaceAll(line, "TIMEOUT", visible.Duration(at[i])))
		}
	}
	want.transcript = said.String() + last
	s.supervised(t, append(incidents, incident{end, exits(result)}), want)
	if preferred := s.playedLock.preferred == "web2"; preferred != want.outcome.Asked.Has(ByStepDown) {
		t.Errorf("the host that is to have the lock next: %q", s.playedLock.preferred)
	}
}

func exitStatus(n int) unix.WaitStatus { return unix.WaitStatus(n << 8) }
