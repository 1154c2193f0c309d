package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// index says where to look for a test, by the beginnings of the files' names.
const index = `
supervise_scenes    lock and command together: what happens, in virtual time
supervise_orders    the same, with all that may happen in every order
linger              --min-hold
lead                whether a candidate stands again, and when
hooks               shell commands for alarms
signals             signals while no command runs
unstarted           a session that is lost before the command starts, or at the release
release             the release of a lock, while the server is silent
each                lists
each_alive          what a list tells the watchdog
each_others         a list that ends with the error of one worker, and the items of the others
each_canceled       a list of which somebody cancels a query
each_hindered       a list whose ledger can't be written for a while
setup               for all tests
`

func TestIndex(t *testing.T) { testserver.Index(t, index, ".") }

// scene is a supervision whose lock and command are played, in virtual time. Its
// transcript has, in order and with the time since the start, all that the command
// is told, all that is logged, and all calls of hooks and of the observer.
type scene struct {
	supervision
	sent          chan os.Signal
	playedLock    *playedLock
	playedCommand *playedCommand
	restored      int // how often the terminal was given its modes again

	transcript strings.Builder
}

// newScene makes a scene. It has to be called in a bubble of virtual time (synctest).
func newScene() *scene {
	s := &scene{
		sent:       make(chan os.Signal, 64),
		playedLock: &playedLock{lost: make(chan struct{}), deadlines: make(chan boottime.Instant, 1), stepDowns: make(chan lock.StepDown, 1)},
	}
	s.playedCommand = &playedCommand{told: s.say, events: make(chan child.Event, 16), done: make(chan struct{})}
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	s.supervision = supervision{
		run:  &run{process: &process{}, signals: s.sent},
		held: s.playedLock, command: s.playedCommand, started: time.Now(),
		onLoss:          func(reason error) { s.say("hook: " + reason.Error()) },
		restoreTerminal: func() { s.restored++ },
	}
	s.run.cfg.Lock.Session = session.Config{Lease: 15 * time.Second, Database: &pgconn.Config{Host: "db", Port: 5432, Database: "app"}}
	s.run.log = slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	s.run.cfg.CommandObserver.Interrupted = func() { s.say("observer: interrupted") }
	return s
}

// say writes a line of the transcript.
func (s *scene) say(text string) { fmt.Fprintf(&s.transcript, "%v %s\n", time.Since(s.started), text) }

// Write is for the log.
func (s *scene) Write(line []byte) (int, error) {
	s.say(strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

// incident is something that happens at a time since the start.
type incident struct {
	at      time.Duration
	happens func(*scene)
}

// play has the incidents happen, one after the other, while f runs.
func (s *scene) play(incidents []incident, f func()) {
	var playing sync.WaitGroup
	playing.Go(func() {
		for _, i := range incidents {
			time.Sleep(i.at - time.Since(s.started))
			i.happens(s)
		}
	})
	f()
	playing.Wait()
}

func sends(sig unix.Signal) func(*scene) { return func(s *scene) { s.sent <- sig } }

func loses(cause error) func(*scene) {
	return func(s *scene) { s.playedLock.lose(&session.LostError{Cause: cause, SilentFor: 9 * time.Second}) }
}

func exits(result child.Result) func(*scene) {
	return func(s *scene) {
		s.playedCommand.result = result
		close(s.playedCommand.done)
	}
}

func reports(event child.Event) func(*scene) {
	return func(s *scene) { s.playedCommand.events <- event }
}

func renews(deadline time.Duration) func(*scene) {
	return func(s *scene) { s.playedLock.deadlines <- boottime.Instant(deadline) }
}

func asksToStepDown(s *scene) {
	if s.playedLock.pending.Swap(true) {
		return
	}
	find := func() { s.playedLock.stepDowns <- lock.StepDown{By: "root@elsewhere", To: "web2"} }
	if s.playedLock.askerLate == 0 {
		find()
		return
	}
	go func() {
		select {
		case <-time.After(s.playedLock.askerLate):
			find()
		case <-s.playedLock.lost: // the lock's session has ended, and the question with it
		}
	}()
}

// playedLock is a lock that is lost when a test says so.
type playedLock struct {
	lost      chan struct{}
	deadlines chan boottime.Instant
	pending   atomic.Bool
	stepDowns chan lock.StepDown
	askerLate time.Duration
	noteLate  time.Duration
	preferred string // the host that is to have the lock next
	noted     bool   // the end is in the ledger, or will be

	mu  sync.Mutex
	err error
}

func (l *playedLock) Lost() <-chan struct{}            { return l.lost }
func (l *playedLock) Renewed() <-chan boottime.Instant { return l.deadlines }
func (l *playedLock) StepDownPending() bool            { return l.pending.Load() }
func (l *playedLock) StepDowns() <-chan lock.StepDown  { return l.stepDowns }
func (l *playedLock) Prefer(host string)               { l.preferred = host }

func (l *playedLock) RecordEnd(ctx context.Context) <-chan struct{} {
	l.noted = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-time.After(l.noteLate):
		case <-ctx.Done():
		case <-l.lost: // the lock's session has ended, and the note with it
		}
	}()
	return done
}

func (l *playedLock) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *playedLock) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	close(l.lost)
}

// playedCommand writes down what it is told, and does none of it.
type playedCommand struct {
	born   boottime.Instant
	told   func(string)
	events chan child.Event
	done   chan struct{}
	result child.Result
}

func (c *playedCommand) PID() int                   { return 4711 }
func (c *playedCommand) Born() boottime.Instant     { return c.born }
func (c *playedCommand) Events() <-chan child.Event { return c.events }
func (c *playedCommand) Done() <-chan struct{}      { return c.done }
func (c *playedCommand) Result() child.Result       { return c.result }
func (c *playedCommand) Signal(sig unix.Signal)     { c.told("signal " + unix.SignalName(sig)) }
func (c *playedCommand) Forward(sig unix.Signal)    { c.told("forward " + unix.SignalName(sig)) }
func (c *playedCommand) StopPglead()                { c.told("stop with it") }
func (c *playedCommand) Renew(deadline boottime.Instant) {
	c.told(fmt.Sprint("renew ", time.Duration(deadline)))
}
func (c *playedCommand) TellLost() { c.told("told of the loss") }
func (c *playedCommand) Kill()     { c.told("kill") }

// expectation is what a scene has to end with.
type expectation struct {
	transcript string
	outcome    Outcome
	err        string // with its type, or nothing
}

// supervised plays a scene and checks its transcript, outcome and error.
func (s *scene) supervised(t *testing.T, incidents []incident, want expectation) {
	t.Helper()
	var outcome Outcome
	var err error
	s.play(incidents, func() { outcome, err = s.supervise() })
	time.Sleep(time.Hour) // and nothing follows
	s.check(t, want.transcript)
	if killed := s.playedCommand.result.Ending != child.Exited || s.playedCommand.result.Status.Signaled(); s.restored == 1 != killed {
		t.Errorf("the terminal is restored %d times", s.restored)
	}
	if outcome != want.outcome {
		t.Errorf("outcome %+v, want %+v", outcome, want.outcome)
	}
	got := ""
	if err != nil {
		got = fmt.Sprintf("%T: %v", err, err)
	}
	if got != want.err {
		t.Errorf("error %q\n want %q", got, want.err)
	}
}

func (s *scene) check(t *testing.T, want string) {
	t.Helper()
	if got := strings.TrimSpace(s.transcript.String()); got != strings.TrimSpace(want) {
		t.Errorf("what happened:\n%s\n\nwhat should have:\n%s", got, strings.TrimSpace(want))
	}
}

// errCut is the cause of a loss.
var errCut = errors.New("the server does not answer")

// lockOn says how to wait for lock 1 of a server that a test has started. The lock-delay is
// longer than any test.
func lockOn(t *testing.T, server *localpg.Server) lock.Config {
	t.Helper()
	database, err := session.ParseDSN(server.DSN("postgres"), "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	return lock.Config{
		Claim: lock.Claim{IDs: []lockkey.ID{{Number: 1}}}, Wait: lock.Forever, LockDelay: time.Hour,
		Session: session.Config{
			Database: database, Lease: 6 * time.Second, ConnectTimeout: 10 * time.Second,
			ApplicationName: "pglead:test@here",
		},
		PrivateServer: true,
		Log:           slog.New(slog.DiscardHandler),
	}
}
