package runner

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/session"
)

const sec = time.Second

// done is the end of a command at the end of a scene.
func done() func(*scene) { return exits(child.Result{}) }

// Lines of transcripts.
const (
	doneAt60   = "\n1m0s level=INFO msg=\"command ended\" event=exited ran=1m0s status=\"exit status 0\""
	killedAt60 = "\n1m0s level=INFO msg=\"command killed\" event=killed ran=1m0s processes="
	killLine   = ` level=ERROR msg="the command did not end after SIGTERM; killing it and all that it started" event=killed`
	leftLine   = ` level=ERROR msg="what the command left running does not end; killing it" event=killed`
	lossLine   = ` level=INFO+2 msg="lock lost, killing the command" event=lost reason="the server does not answer"`
	lostAt1    = "\n1s told of the loss\n1s" + lossLine + "\n1s hook: the server does not answer"
)

var killLineInt = strings.ReplaceAll(killLine, "SIGTERM", "SIGINT")

// lost is the text of a *LostError.
func lost(cause, what string) string {
	return "the lock in db:5432/app was lost" + cause + "; the command (process 4711) " + what
}

const (
	silence = " (last known held 9s before): the server does not answer"
	isLost  = "*runner.LockLostError: "
)

// guardFirst is the transcript of a loss that the guard has noticed first.
func guardFirst(at, text string) string {
	return fmt.Sprintf(`%[1]s level=INFO msg="command killed" event=killed ran=1m0s processes=1
%[1]s level=INFO+2 msg="lock lost" event=lost reason="%[2]s"
%[1]s hook: %[2]s`, at, text)
}

// sceneTests are scenes by name.
type sceneTests map[string]struct {
	prepare   func(*scene)
	incidents []incident
	want      expectation
}

func (tests sceneTests) run(t *testing.T) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene()
				if test.prepare != nil {
					test.prepare(s)
				}
				s.supervised(t, test.incidents, test.want)
			})
		})
	}
}

// TestTimeToEnd: how long a command may take to end. TestEveryOrder has one request to end of each
// kind, in every order.
func TestTimeToEnd(t *testing.T) {
	sceneTests{
		"what the terminal sent before the start has not reached the command": {
			prepare: func(s *scene) {
				s.kept = []keptSignal{
					{unix.SIGUSR1, boottime.Instant(1 * sec)},
					{unix.SIGTERM, boottime.Instant(2 * sec)},
					{unix.SIGUSR2, boottime.Instant(3*sec + execTime/2)},
					{unix.SIGINT, boottime.Instant(4 * sec)},
				}
				s.playedCommand.born = boottime.Instant(3 * sec)
				s.run.cfg.KillAfterSignal = 3 * sec
			},
			incidents: []incident{{60 * sec, done()}},
			want: expectation{outcome: Outcome{Ran: 60 * sec, Asked: BySignal}, transcript: `
0s signal SIGUSR1
0s signal SIGTERM
0s observer: interrupted
0s signal SIGUSR2
0s forward SIGINT
0s observer: interrupted
3s kill
3s` + killLine + doneAt60},
		},
		"a second request to end leaves the time as it is": {
			prepare:   func(s *scene) { s.run.cfg.KillAfterSignal = 10 * sec },
			incidents: []incident{{1 * sec, sends(unix.SIGTERM)}, {4 * sec, sends(unix.SIGINT)}, {5 * sec, asksToStepDown}, {60 * sec, done()}},
			want: expectation{outcome: Outcome{Ran: 60 * sec, Asked: BySignal | ByStepDown}, transcript: `
1s forward SIGTERM
1s observer: interrupted
4s forward SIGINT
4s observer: interrupted
5s signal SIGTERM
5s signal SIGCONT
5s level=WARN msg="asked to step down by root@elsewhere; sending SIGTERM" event=stepping_down by=root@elsewhere
11s kill
11s` + killLine + doneAt60},
		},
		"a timeout leaves the time as it is": {
			prepare: func(s *scene) {
				s.run.cfg.Timeout, s.run.cfg.KillAfterTimeout, s.run.cfg.KillAfterSignal = 5*sec, 10*sec, 10*sec
			},
			incidents: []incident{{1 * sec, sends(unix.SIGTERM)}, {60 * sec, done()}},
			want: expectation{outcome: Outcome{Ran: 60 * sec, Asked: BySignal | ByTimeout}, transcript: `
1s forward SIGTERM
1s observer: interrupted
5s signal SIGTERM
5s signal SIGCONT
5s level=ERROR msg="the command ran for all of the 5s that --timeout allows; sending SIGTERM" event=timeout
11s kill
11s` + killLine + doneAt60},
		},
		"without kill-after a command has all the time": {
			prepare:   func(s *scene) { s.run.cfg.Timeout = 5 * sec },
			incidents: []incident{{1 * sec, sends(unix.SIGTERM)}, {1e6 * sec, done()}},
			want: expectation{outcome: Outcome{Ran: 1e6 * sec, Asked: BySignal | ByTimeout}, transcript: `
1s forward SIGTERM
1s observer: interrupted
5s signal SIGTERM
5s signal SIGCONT
5s level=ERROR msg="the command ran for all of the 5s that --timeout allows; sending SIGTERM" event=timeout
277h46m40s level=INFO msg="command ended" event=exited ran=277h46m40s status="exit status 0"`},
		},
		"a command that outlives its kill is killed again when it is asked again": {
			prepare:   func(s *scene) { s.run.cfg.KillAfterSignal = 2 * sec },
			incidents: []incident{{1 * sec, sends(unix.SIGINT)}, {10 * sec, sends(unix.SIGINT)}, {60 * sec, exits(child.Result{Status: 9})}},
			want: expectation{outcome: Outcome{Status: 9, Ran: 60 * sec, Asked: BySignal}, transcript: `
1s forward SIGINT
1s observer: interrupted
3s kill
3s` + killLineInt + `
10s forward SIGINT
10s observer: interrupted
12s kill
12s` + killLineInt + `
1m0s level=INFO msg="command ended" event=exited ran=1m0s status=SIGKILL`},
		},
	}.run(t)
}

// TestWhatAsksForTheEnd: requests that are no reason to end, and a request whose asker is found
// late.
func TestWhatAsksForTheEnd(t *testing.T) {
	sceneTests{
		"not every signal is for the end": {
			prepare:   func(s *scene) { s.run.cfg.KillAfterSignal = 3 * sec },
			incidents: []incident{{1 * sec, sends(unix.SIGUSR1)}, {2 * sec, sends(unix.SIGHUP)}, {3 * sec, sends(unix.SIGQUIT)}, {60 * sec, done()}},
			want:      expectation{outcome: Outcome{Ran: 60 * sec}, transcript: "1s forward SIGUSR1\n2s forward SIGHUP\n3s forward SIGQUIT" + doneAt60},
		},
		"a reload is none, and a death of it is one": {
			prepare:   func(s *scene) { s.run.cfg.KillAfterSignal = 3 * sec },
			incidents: []incident{{1 * sec, sends(unix.SIGHUP)}, {60 * sec, exits(child.Result{Status: unix.WaitStatus(unix.SIGHUP)})}},
			want: expectation{outcome: Outcome{Ran: 60 * sec, Status: unix.WaitStatus(unix.SIGHUP), Asked: BySignal}, transcript: `
1s forward SIGHUP
1m0s level=INFO msg="command ended" event=exited ran=1m0s status=SIGHUP`},
		},
		"an exit for it is one": {
			incidents: []incident{{1 * sec, sends(unix.SIGHUP)}, {60 * sec, exits(child.Result{Status: 129 << 8})}},
			want: expectation{outcome: Outcome{Ran: 60 * sec, Status: 129 << 8, Asked: BySignal}, transcript: `
1s forward SIGHUP
1m0s level=INFO msg="command ended" event=exited ran=1m0s status="exit status 129"`},
		},
		"a second request to step down is none": {
			incidents: []incident{{1 * sec, asksToStepDown}, {2 * sec, asksToStepDown}, {60 * sec, done()}},
			want: expectation{outcome: Outcome{Ran: 60 * sec, Asked: ByStepDown}, transcript: `
1s signal SIGTERM
1s signal SIGCONT
1s level=WARN msg="asked to step down by root@elsewhere; sending SIGTERM" event=stepping_down by=root@elsewhere` + doneAt60},
		},
		"nothing waits for who asks to step down": {
			prepare:   func(s *scene) { s.playedLock.askerLate = 10 * sec },
			incidents: []incident{{1 * sec, asksToStepDown}, {2 * sec, loses(errCut)}, {3 * sec, exits(child.Result{Ending: child.ByOrder, Killed: 1})}},
			want: expectation{err: isLost + lost(silence, "was killed"), transcript: `
2s told of the loss
2s` + lossLine + `
2s hook: the server does not answer
3s level=INFO msg="command killed" event=killed ran=3s processes=1`},
		},
	}.run(t)
}

// TestReports: what the session and the guard report while the command runs.
func TestReports(t *testing.T) {
	sceneTests{
		"deadlines are passed on": {
			incidents: []incident{{3 * sec, renews(12 * sec)}, {6 * sec, renews(15 * sec)}, {60 * sec, done()}},
			want:      expectation{outcome: Outcome{Ran: 60 * sec}, transcript: "3s renew 12s\n6s renew 15s" + doneAt60},
		},
		"a stopped command stops this process": {
			incidents: []incident{{3 * sec, reports(child.Event{Stopped: true})}, {60 * sec, done()}},
			want:      expectation{outcome: Outcome{Ran: 60 * sec}, transcript: "3s stop with it" + doneAt60},
		},
		"leftovers are ended": {
			incidents: []incident{{3 * sec, reports(child.Event{Leftovers: "sleep (12)"})}, {60 * sec, done()}},
			want: expectation{outcome: Outcome{Ran: 60 * sec}, transcript: `
3s level=ERROR msg="the command has ended; ending what it left running: sleep (12)" event=leftovers` + doneAt60},
		},
		"leftovers outlast kill-after": {
			prepare: func(s *scene) { s.run.cfg.KillAfterSignal = 2 * sec },
			incidents: []incident{
				{1 * sec, sends(unix.SIGTERM)}, {2 * sec, reports(child.Event{Leftovers: "sleep (12)"})}, {60 * sec, done()},
			},
			want: expectation{outcome: Outcome{Ran: 60 * sec, Asked: BySignal}, transcript: `
1s forward SIGTERM
1s observer: interrupted
2s level=ERROR msg="the command has ended; ending what it left running: sleep (12)" event=leftovers
3s kill
3s` + leftLine + doneAt60},
		},
		"leftovers are waited for": {
			prepare:   func(s *scene) { s.run.cfg.WaitForLeftovers = true },
			incidents: []incident{{3 * sec, reports(child.Event{Leftovers: "sleep (12)"})}, {60 * sec, done()}},
			want: expectation{outcome: Outcome{Ran: 60 * sec}, transcript: `
3s level=INFO msg="the command has ended; waiting for what it left running: sleep (12)" event=leftovers` + doneAt60},
		},
		"what comes with the end is reported, too": {
			incidents: []incident{{60 * sec, func(s *scene) {
				for range 8 { // the end may be seen before any of them
					reports(child.Event{Leftovers: "sleep (12)"})(s)
				}
				done()(s)
			}}},
			want: expectation{outcome: Outcome{Ran: 60 * sec}, transcript: strings.Repeat(`
1m0s level=ERROR msg="the command has ended; ending what it left running: sleep (12)" event=leftovers`, 8) + doneAt60},
		},
		"what can't be killed is said again when the lock is lost": {
			incidents: []incident{
				{3 * sec, reports(child.Event{Unkillable: "nfs (12)"})}, {4 * sec, loses(errCut)},
				{5 * sec, reports(child.Event{Unkillable: "fuse (13)"})}, {60 * sec, exits(child.Result{Ending: child.ByOrder, Killed: 2})},
			},
			want: expectation{err: isLost + lost(silence, "was killed with all that it had started, 2 processes"), transcript: `
3s level=ERROR msg="these processes can't be killed, and the lock stays held while they live: nfs (12)" event=unkillable
4s told of the loss
4s` + lossLine + `
4s hook: the server does not answer
4s level=ERROR msg="these processes can't be killed, and the lock is lost: another node may run the command while they live: nfs (12)" event=unkillable
5s level=ERROR msg="these processes can't be killed, and the lock is lost: another node may run the command while they live: fuse (13)" event=unkillable` + killedAt60 + "2"},
		},
	}.run(t)
}

// TestGuardAndLoss: what the guard sees of a loss, and does or fails to do about it.
func TestGuardAndLoss(t *testing.T) {
	sceneTests{
		"the guard sees the end of the connection first": {
			incidents: []incident{{60 * sec, exits(child.Result{Ending: child.SocketClosed, Killed: 1})}, {60*sec + sec/2, loses(errCut)}},
			want:      expectation{err: isLost + lost(silence, "was killed"), transcript: guardFirst("1m0.5s", "the server does not answer")},
		},
		"the guard alone sees the end of the connection": {
			incidents: []incident{{60 * sec, exits(child.Result{Ending: child.SocketClosed, Killed: 1})}},
			want: expectation{
				err:        isLost + lost(": the server closed the connection", "was killed"),
				transcript: guardFirst("1m1s", "the server closed the connection"),
			},
		},
		"the guard alone sees that the lease is over": {
			incidents: []incident{{60 * sec, exits(child.Result{Ending: child.LeaseOver, Killed: 1})}},
			want: expectation{
				err:        isLost + lost(": "+session.ErrStopped.Error(), "was killed"),
				transcript: guardFirst("1m1s", session.ErrStopped.Error()),
			},
		},
		"the guard sees it too": {
			incidents: []incident{{1 * sec, loses(errCut)}, {60 * sec, exits(child.Result{Ending: child.SocketClosed, Killed: 1})}},
			want:      expectation{err: isLost + lost(silence, "was killed"), transcript: lostAt1 + killedAt60 + "1"},
		},
		"the command ends by itself after the loss": {
			incidents: []incident{{1 * sec, loses(errCut)}, {60 * sec, exits(child.Result{Status: exitStatus(2)})}},
			want:      expectation{err: isLost + lost(silence, "had just ended: exit status 2"), transcript: lostAt1 + killedAt60 + "0"},
		},
		"the command ends on the SIGTERM of the loss": {
			prepare:   func(s *scene) { s.run.cfg.Lock.LostGrace = 2 * sec },
			incidents: []incident{{1 * sec, loses(errCut)}, {60 * sec, exits(child.Result{})}},
			want:      expectation{err: isLost + lost(silence, "ended, by itself or on the SIGTERM of --lost-grace: exit status 0"), transcript: lostAt1 + killedAt60 + "0"},
		},
		"the guard is killed": {
			incidents: []incident{{1 * sec, sends(unix.SIGTERM)}, {60 * sec, exits(child.Result{Ending: child.GuardDied, Killed: 3})}},
			want: expectation{
				outcome:    Outcome{Ran: 60 * sec, Asked: BySignal},
				err:        "*child.GuardError: the guard process died; the command and what it had started were killed",
				transcript: "1s forward SIGTERM\n1s observer: interrupted" + killedAt60 + "3",
			},
		},
		"the guard is killed after the loss": {
			incidents: []incident{{1 * sec, loses(errCut)}, {60 * sec, exits(child.Result{Ending: child.GuardDied, Killed: 1})}},
			want:      expectation{err: isLost + lost(silence, "was killed when its guard process died"), transcript: lostAt1 + killedAt60 + "1"},
		},
		"the guard does not do in time what a timeout asks of it": {
			prepare:   func(s *scene) { s.run.cfg.Timeout, s.run.cfg.KillAfterTimeout = 5*sec, 10*sec },
			incidents: []incident{{60 * sec, exits(child.Result{Ending: child.GuardLate, Status: 9, Killed: 1})}},
			want: expectation{outcome: Outcome{Status: 9, Ran: 60 * sec, Asked: ByTimeout}, transcript: `
5s signal SIGTERM
5s signal SIGCONT
5s level=ERROR msg="the command ran for all of the 5s that --timeout allows; sending SIGTERM" event=timeout
15s kill
15s` + killLine + `
1m0s level=INFO msg="command ended" event=exited ran=1m0s status=SIGKILL`},
		},
		"the guard does not do in time what the loss asks of it": {
			incidents: []incident{{1 * sec, loses(errCut)}, {60 * sec, exits(child.Result{Ending: child.GuardLate})}},
			want: expectation{
				err:        isLost + lost(silence, "was dead; its guard process, which did not say so in time, was killed"),
				transcript: lostAt1 + killedAt60 + "0",
			},
		},
	}.run(t)
}

// TestLossAtTheEnd has the lock lost at the instant at which the command ends: whichever of the two
// is seen first, the loss is the outcome, and the hook is called once.
func TestLossAtTheEnd(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		synctest.Test(t, func(t *testing.T) {
			s := newScene()
			loses(errCut)(s)
			done()(s)
			_, err := s.supervise()
			want := isLost + lost(silence, "had just ended: exit status 0")
			if got := fmt.Sprintf("%T: %v", err, err); got != want {
				t.Fatalf("error %q\n want %q", got, want)
			}
			transcript := s.transcript.String()
			if n := strings.Count(transcript, " hook: "); n != 1 {
				t.Fatalf("%d calls of the hook:\n%s", n, transcript)
			}
			seen[transcript] = true
		})
	}
	if len(seen) != 2 {
		t.Errorf("seen %v", seen)
	}
}

// TestSignalAtTheEnd has a signal wait in the channel when the command ends. The command may have
// received it, too, and may have left its work undone. So the signal counts, whichever of the two
// is seen first.
func TestSignalAtTheEnd(t *testing.T) {
	for range 1000 {
		synctest.Test(t, func(t *testing.T) {
			s := newScene()
			sends(unix.SIGTERM)(s)
			done()(s)
			outcome, err := s.supervise()
			if want := (Outcome{Asked: BySignal}); outcome != want || err != nil {
				t.Fatalf("outcome %+v, %v", outcome, err)
			}
		})
	}
}

// TestSaysInTimeThatItIsAlive has nothing happen for a minute. Each promise that this process is
// not stuck comes before the one before it has run out.
func TestSaysInTimeThatItIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		until, calls := s.started, 0
		s.run.cfg.Lock.Observer.Alive = func(within time.Duration) {
			if time.Now().After(until) {
				t.Errorf("after %v: %v too late", time.Since(s.started), time.Since(until))
			}
			until, calls = time.Now().Add(within), calls+1
		}
		s.supervised(t, []incident{{60 * sec, done()}}, expectation{transcript: doneAt60, outcome: Outcome{Ran: 60 * sec}})
		if want := 1 + 60/3; calls < want || calls > want+1 { // the last call may come before the end, or not
			t.Errorf("%d calls", calls)
		}
	})
}
