package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// Somebody who waits at a terminal sees a status line. A CI log gets a line at the start,
// and then a few. Cron gets none, since it mails every line.

const (
	// redraw is how often the status line's clock is updated.
	redraw = time.Second
	// lookAgain is how often the status line asks the server who holds the lock.
	lookAgain = 2 * time.Second
	// longDelay is the longest lock-delay of which a log without a reader gets no warning. The default
	// delay is 10 s, and cron would mail each. After a minute a person or a time limit may end what
	// seems to hang: systemd's DefaultTimeoutStartSec is 90 s.
	longDelay = time.Minute
)

// waitReport tells people about a wait: each's workers, at the same time, about that of their list.
type waitReport struct {
	u     *ui
	cfg   session.Config
	claim lock.Claim
	out   outage

	mu    sync.Mutex
	said  int       // how many lines the log has
	pause string    // the pause that was told last, or empty
	began time.Time // of the wait, or zero
	hide  func()    // ends the status line about an obstacle, if there is one
}

// begin begins the wait, unless it has begun, and says when that was.
func (s *waitReport) begin() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	return s.began
}

// end forgets the wait: the command has started.
func (s *waitReport) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.said = time.Time{}, 0
}

// line describes the wait from what the server shows.
func (s *waitReport) line(backend uint32, views []inspect.View) string {
	text := "waiting"
	if d := time.Since(s.begin()).Truncate(time.Second); d > 0 {
		text += " for " + brief(d)
	}
	return text + s.position(backend, views, inspect.View.String)
}

// position is the place in line, and who has the locks.
func (s *waitReport) position(backend uint32, views []inspect.View, name func(inspect.View) string) (text string) {
	holders, before, waiters := inspect.InLine(views, backend)
	switch {
	case waiters <= 1:
	case before < 0:
		text += fmt.Sprintf(" (%d in line)", waiters)
	default:
		text += fmt.Sprintf(" (number %d of %d in line)", before+1, waiters)
	}
	var names []string
	for _, h := range holders {
		names = append(names, name(h))
	}
	if len(names) > 0 {
		text += "; held by " + few(names, 1)
	}
	return text
}

// keepStatus shows the line until ctx ends. It has its own connection, since one request is on the
// wire at a time: on the waiter's connection a look could delay a try.
func (s *waitReport) keepStatus(ctx context.Context, backend uint32) {
	var client *session.Client
	defer func() {
		if client != nil {
			client.Close()
		}
	}()
	var views []inspect.View
	var looked time.Time
	s.show(ctx.Done(), func() string {
		if time.Since(looked) >= lookAgain {
			looked = time.Now()
			views, client = s.look(ctx, client)
		}
		return s.line(backend, views)
	})
}

// show shows a text in the status line, and updates it until done.
func (s *waitReport) show(done <-chan struct{}, text func() string) {
	defer s.u.clearStatus(statusHidden)
	tick := time.Tick(redraw)
	for {
		line := text()
		select {
		case <-done:
			return
		default:
			s.u.setStatus(visible.Text("pglead: " + s.u.key + ": " + line))
		}
		select {
		case <-tick:
		case <-done:
			return
		}
	}
}

// showObstacle shows an obstacle in the status line until the next call; nil shows nothing.
// It returns when the previous text is gone. text must not lock s.mu.
func (s *waitReport) showObstacle(text func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hide != nil {
		s.hide()
		s.hide = nil
	}
	if text != nil {
		var line sync.WaitGroup
		done := make(chan struct{})
		line.Go(func() { s.show(done, text) })
		s.hide = func() {
			close(done)
			line.Wait()
		}
	}
}

// look asks the server. If that fails, it closes the client.
func (s *waitReport) look(ctx context.Context, client *session.Client) ([]inspect.View, *session.Client) {
	if client == nil {
		var err error
		if client, err = session.OpenClient(ctx, s.cfg); err != nil {
			return nil, nil // without an answer the line says nothing about holders
		}
	}
	views, err := inspect.Views(ctx, client, s.claim.Sought())
	if err != nil {
		client.Close()
		return nil, nil
	}
	return views, client
}

// logRarely writes a line to a log when one is due.
func (s *waitReport) logRarely(backend uint32, views []inspect.View) {
	waited := time.Since(s.begin())
	s.mu.Lock()
	due := s.isDue(waited)
	s.mu.Unlock()
	if !due {
		return
	}
	s.u.log.Warn(visible.Text(s.line(backend, views)), "event", "waiting")
}

// showPause tells of a pause, when it begins, and then rarely. It says whether that pause is new.
func (s *waitReport) showPause(why error, level slog.Level) (isNew bool) {
	text, waited := why.Error(), time.Since(s.begin())
	s.mu.Lock()
	isNew = text != s.pause
	s.pause = text
	due := s.isDue(waited)
	s.mu.Unlock()
	if !due && !isNew {
		return false
	}
	s.u.log.Log(context.Background(), level, text+"; waiting", "event", "paused")
	return isNew
}

func (s *waitReport) forgetPause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pause = ""
}

// isDue says whether the log gets a line after so long a wait, which counts as its lines up to this
// moment. The caller has s.mu.
func (s *waitReport) isDue(waited time.Duration) (due bool) {
	for ; s.due() <= waited; due = true {
		s.said++
	}
	return due
}

// due is when the log gets its next line, counted from the start. After the last of the
// minutes the interval doubles each time.
func (s *waitReport) due() time.Duration {
	minutes := [...]int{0, 1, 2, 5, 10, 20, 30, 60}
	last := len(minutes) - 1
	if s.said <= last {
		return time.Duration(minutes[s.said]) * time.Minute
	}
	return time.Duration(minutes[last]) * time.Minute << min(s.said-last, 10)
}

// observe makes the runner tell people and systemd what it is doing. work says what this
// process does while a command runs.
func (o *options) observe(cfg *runner.Config, work string) {
	u := o.u
	s := &waitReport{u: u, cfg: cfg.Lock.Session, claim: cfg.Lock.Claim, out: outage{u: u}, began: time.Now()}
	s.cfg.ApplicationName = "pglead"
	cfg.CommandObserver.Started = s.end
	hasStatus, to, pauseLevel := u.hasStatus(), &cfg.Lock.Observer, lock.LevelNotice
	cfg.Lock.LongDelay = longDelay
	switch {
	case hasStatus:
		to.Beside = s.keepStatus
	case (os.Getenv("CI") != "" || u.watched()) && !o.quiet: // or it is a terminal without a status line
		to.Waiting, cfg.Lock.LongDelay, pauseLevel = s.logRarely, 0, slog.LevelWarn
	}
	to.Away = func(obstacle error) {
		shown := true
		switch {
		case obstacle == nil:
			s.forgetPause()
			s.showObstacle(nil)
			s.out.answers()
			return
		case errors.As(obstacle, new(*ledger.PausedError)):
			shown = s.showPause(obstacle, pauseLevel)
		default:
			s.out.away(obstacle)
		}
		if hasStatus && shown {
			wait := s.begin()
			s.showObstacle(func() string { return "waiting for " + brief(time.Since(wait)) + ": " + obstacle.Error() })
		}
	}
	to.Delayed = func(until time.Time) {
		switch {
		case until.IsZero():
			s.showObstacle(nil)
		case hasStatus && len(cfg.Lock.Claim.IDs) > 0: // each has no locks here, and has its own status line
			s.showObstacle(func() string {
				return "starts in " + brief(max(0, time.Until(until))+time.Second-1) + ": the last holder may live on"
			})
		}
	}
	if n := newNotifier(u); n != nil {
		n.observe(s, cfg, work)
	}
}
