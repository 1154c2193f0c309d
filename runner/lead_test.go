package runner

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/child"
)

// TestPauses: what a candidate does after each of several runs in a row, and what it says.
func TestPauses(t *testing.T) {
	lasts := func(d time.Duration) Outcome { return Outcome{Ran: d, Status: 1 << 8} }
	loss := &LockLostError{Database: "db:5432/app", Cause: child.ErrLeaseOver, What: "killed"}
	type after struct {
		outcome Outcome
		err     error
		pause   time.Duration
	}
	ends := func(pauses ...time.Duration) (runs []after) {
		for _, pause := range pauses {
			runs = append(runs, after{lasts(sec), nil, pause})
		}
		return runs
	}
	for name, tt := range map[string]struct {
		runs []after
		says string // after the last of them
	}{
		"the pause doubles, up to a minute": {
			ends(sec, 2*sec, 4*sec, 8*sec, 16*sec, 32*sec, 60*sec, 60*sec),
			`event=restarting "the command ended after 1s (exit status 1); standing for election again in 1m"`,
		},
		"after a good run it begins anew": {
			append(ends(sec, 2*sec, 4*sec), after{lasts(restartSettled), nil, sec}, after{lasts(sec), nil, 2 * sec}),
			`event=restarting "the command ended after 1s (exit status 1); standing for election again in 2s"`,
		},
		"a good run whose guard dies is one, too": {
			append(ends(sec, 2*sec, 4*sec), after{Outcome{Ran: restartSettled}, child.ErrGuardDied, sec}),
			`event=standing "` + child.ErrGuardDied.Error() + `; standing for election again in 1s"`,
		},
		"a guard that dies early": {
			append(ends(sec, 2*sec), after{Outcome{Ran: sec}, child.ErrGuardDied, 4 * sec}),
			`event=standing "` + child.ErrGuardDied.Error() + `; standing for election again in 4s"`,
		},
		"a loss": {
			append(ends(sec, 2*sec), after{Outcome{}, loss, 0}),
			`event=standing "` + loss.Error() + `; standing for election again"`,
		},
		"a command that ends soon after a loss": {
			append(ends(sec, 2*sec), after{Outcome{}, loss, 0}, after{lasts(sec), nil, sec}),
			`event=restarting "the command ended after 1s (exit status 1); standing for election again in 1s"`,
		},
	} {
		var said strings.Builder
		pause := time.Duration(0)
		for i, run := range tt.runs {
			if RestartAlways.ends(run.outcome, run.err) {
				t.Errorf("%s: it ends after run %d", name, i+1)
			}
			if pause = pauseAfter(run.outcome, run.err, pause); pause != run.pause {
				t.Errorf("%s: a pause of %v after run %d, want %v", name, pause, i+1, run.pause)
			}
		}
		last := tt.runs[len(tt.runs)-1]
		warnOfRestart(slog.New(slog.NewTextHandler(&said, nil)), last.outcome, last.err, last.pause)
		event, text, _ := strings.Cut(tt.says, " ")
		if got := said.String(); !strings.HasSuffix(got, fmt.Sprintf(" level=WARN msg=%s %s\n", text, event)) {
			t.Errorf("%s: it says %s", name, got)
		}
	}
}

// TestCandidacyEnds: after which runs a candidate does not stand again.
func TestCandidacyEnds(t *testing.T) {
	failed := Outcome{Status: 1 << 8}
	for _, tt := range []struct {
		outcome                  Outcome
		err                      error
		always, onFailure, never bool
	}{
		{outcome: Outcome{}, onFailure: true, never: true},
		{outcome: failed, never: true},
		{outcome: Outcome{Asked: ByTimeout}, never: true},
		{outcome: Outcome{Asked: ByStepDown}, never: true},
		{outcome: Outcome{Asked: BySignal}, always: true, onFailure: true, never: true},
		{outcome: Outcome{Asked: BySignal}, err: &LockLostError{}, always: true, onFailure: true, never: true},
		{err: &InterruptedError{Signal: unix.SIGTERM}, always: true, onFailure: true, never: true},
		{err: &LockLostError{}},
		{err: child.ErrNotStarted},
		{err: child.ErrGuardDied, never: true},
	} {
		for restart, want := range map[Restart]bool{RestartAlways: tt.always, RestartOnFailure: tt.onFailure, RestartNever: tt.never} {
			if got := restart.ends(tt.outcome, tt.err); got != want {
				t.Errorf("%s: %+v, %v ends it: %t", restart, tt.outcome, tt.err, got)
			}
		}
	}
}
