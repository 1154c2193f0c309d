package runner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestLinger plays the time between the end of the command and that of --min-hold.
func TestLinger(t *testing.T) {
	const lingering = `level=INFO msg="holding the lock for the rest of --min-hold" event=lingering rest=6s`
	for name, test := range map[string]struct {
		minHold   time.Duration
		noteLate  time.Duration
		incidents []incident
		want      string
		over      time.Duration
		askerLate time.Duration
		asked     Asked
	}{
		"the command took longer": {minHold: 4 * sec, over: 4 * sec},
		"the time passes":         {minHold: 10 * sec, want: "4s " + lingering, over: 10 * sec},
		"a signal asks for the end": {
			minHold: 10 * sec, incidents: []incident{{7 * sec, sends(unix.SIGTERM)}},
			want: "4s " + lingering, over: 7 * sec, asked: BySignal,
		},
		"another signal asks for no": {
			minHold: 10 * sec, incidents: []incident{{7 * sec, sends(unix.SIGUSR1)}},
			want: "4s " + lingering, over: 10 * sec,
		},
		"somebody asks for it": {
			minHold: 10 * sec, incidents: []incident{{7 * sec, asksToStepDown}},
			over: 7 * sec, asked: ByStepDown, want: "4s " + lingering + `
7s level=WARN msg="asked to step down by root@elsewhere; not holding the lock for the rest of --min-hold" event=stepping_down by=root@elsewhere`,
		},
		"somebody asked before the end": {
			askerLate: 3 * sec, incidents: []incident{{3 * sec, asksToStepDown}},
			over: 6 * sec, asked: ByStepDown,
		},
		"somebody asked before, and the lock is lost": {
			askerLate: 3 * sec, incidents: []incident{{3 * sec, asksToStepDown}, {5 * sec, loses(errCut)}},
			over: 5 * sec, want: `5s level=WARN msg="the lock was lost after the command's end: the server does not answer" event=lost reason="the server does not answer"`,
		},
		"the lock is lost": {
			minHold: 10 * sec, incidents: []incident{{7 * sec, loses(errCut)}},
			over: 7 * sec, want: "4s " + lingering + `
7s level=WARN msg="the lock was lost before --min-hold was over; another node may run the command again: the server does not answer" event=lost reason="the server does not answer"`,
		},
		"a signal comes while the end is noted": {
			minHold: 10 * sec, noteLate: 8 * sec, incidents: []incident{{11 * sec, sends(unix.SIGTERM)}},
			want: "4s " + lingering, over: 11 * sec, asked: BySignal,
		},
		"another one comes while the end is noted": {
			minHold: 10 * sec, noteLate: 8 * sec, incidents: []incident{{11 * sec, sends(unix.SIGUSR1)}},
			want: "4s " + lingering, over: 12 * sec,
		},
		"the lock is lost while the end is noted": {
			minHold: 10 * sec, noteLate: 8 * sec, incidents: []incident{{11 * sec, loses(errCut)}},
			over: 11 * sec, want: "4s " + lingering + `
11s level=WARN msg="the lock was lost after the command's end: the server does not answer" event=lost reason="the server does not answer"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene()
				s.run.cfg.MinHold, s.playedLock.askerLate, s.playedLock.noteLate = test.minHold, test.askerLate, test.noteLate
				var alive time.Duration
				s.run.cfg.Lock.Observer.Alive = func(within time.Duration) { alive = time.Since(s.started) + within }
				var over time.Duration
				s.play(test.incidents, func() {
					time.Sleep(4 * sec)
					if s.linger(); s.run.asked != test.asked {
						t.Errorf("asked %d, want %d", s.run.asked, test.asked)
					}
					if s.held.Err() != nil {
						s.logLateLoss()
					}
					over = time.Since(s.started)
				})
				s.check(t, test.want)
				lingers := strings.Contains(test.want, lingering)
				if s.playedLock.noted != lingers {
					t.Errorf("the end is noted: %t", s.playedLock.noted)
				}
				if preferred := s.playedLock.preferred == "web2"; preferred != (test.asked == ByStepDown) {
					t.Errorf("preferred: %q", s.playedLock.preferred)
				}
				if over != test.over {
					t.Errorf("over after %v, want %v", over, test.over)
				}
				if lingers && alive != test.minHold+s.run.cfg.Lock.Session.Lease {
					t.Errorf("known to be alive until %v", alive)
				}
			})
		})
	}
}
