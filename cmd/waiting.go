package cmd

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// Who waits in front of a terminal sees a living line; who reads a CI log finds
// a line at the start and then rarely; cron, which mails every line, gets none.

const (
	// redraw is how often the living line's clock moves.
	redraw = time.Second
	// lookAgain is how often the server is asked for it who holds the lock.
	lookAgain = 2 * time.Second
)

// standing is a wait as people are told of it.
type standing struct {
	v     *voice
	cfg   session.Config
	claim lock.Claim
	out   outage
	said  int // lines, to a log

	mu    sync.Mutex
	began time.Time     // of the wait, or zero
	shown chan struct{} // ends the living line of what is in the way
	gone  chan struct{} // it has ended
}

// since is when the wait began.
func (s *standing) since() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.began.IsZero() {
		s.began = time.Now()
	}
	return s.began
}

// over is told that the command has been started.
func (s *standing) over() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.said = time.Time{}, 0
}

// line describes the wait from what the server shows.
func (s *standing) line(backend uint32, views []inspect.View) string {
	return s.waiting() + s.position(backend, views, inspect.View.String)
}

func (s *standing) waiting() string {
	if d := time.Since(s.since()).Round(time.Second); d > 0 {
		return "waiting for " + brief(d)
	}
	return "waiting"
}

// position is the place in line, and who has the locks.
func (s *standing) position(backend uint32, views []inspect.View, name func(inspect.View) string) (text string) {
	holders, before, waiters := s.sort(backend, views)
	switch {
	case waiters <= 1:
	case before < 0:
		text += fmt.Sprintf(" (%d in line)", waiters)
	default:
		text += fmt.Sprintf(" (number %d of %d in line)", before+1, waiters)
	}
	if len(holders) > 0 {
		text += "; held by " + name(holders[0])
		if len(holders) > 1 {
			text += fmt.Sprintf(" and %d more", len(holders)-1)
		}
	}
	return text
}

// sort finds who holds the locks, and the place in line of a backend: how many
// have waited longer, or -1 if it is in none.
func (s *standing) sort(backend uint32, views []inspect.View) (holders []inspect.View, before, waiters int) {
	var own *inspect.View
	var others []inspect.View
	for _, l := range inspect.Locks(views) {
		for _, h := range l.Holders {
			if h.Backend != backend {
				holders = append(holders, h)
			}
		}
		for _, w := range l.Waiters {
			waiters++
			if w.Backend == backend {
				own = &w
			} else {
				others = append(others, w)
			}
		}
	}
	if own == nil {
		return holders, -1, waiters
	}
	for _, w := range others {
		if w.ID == own.ID && w.Waiting > own.Waiting {
			before++
		}
	}
	return holders, before, waiters
}

// live keeps the living line up until ctx ends. It looks by a connection of
// its own, since that of the wait is busy waiting.
func (s *standing) live(ctx context.Context, backend uint32) {
	defer s.v.hush()
	var viewer *session.Viewer
	defer func() {
		if viewer != nil {
			viewer.Close()
		}
	}()
	var views []inspect.View
	var looked time.Time
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for {
		if time.Since(looked) >= lookAgain {
			looked = time.Now()
			views, viewer = s.look(ctx, viewer)
		}
		if ctx.Err() != nil {
			return
		}
		s.draw(s.line(backend, views))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *standing) draw(text string) {
	if width := foreground(os.Stderr); width > 0 {
		s.v.live(shorten(oneLine("pglead: "+s.v.key+": "+text), width-1))
	}
}

// show has the living line say something until the next thing to show; nil is
// none. It returns when what was shown before has gone. text must not lock s.mu.
func (s *standing) show(text func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown != nil {
		close(s.shown)
		<-s.gone
		s.shown = nil
	}
	if text == nil {
		return
	}
	shown, gone := make(chan struct{}), make(chan struct{})
	s.shown, s.gone = shown, gone
	go func() {
		defer close(gone)
		defer s.v.hush()
		tick := time.NewTicker(redraw)
		defer tick.Stop()
		for {
			s.draw(text())
			select {
			case <-tick.C:
			case <-shown:
				return
			}
		}
	}()
}

// look asks the server, and gives up a viewer with which that fails.
func (s *standing) look(ctx context.Context, viewer *session.Viewer) ([]inspect.View, *session.Viewer) {
	if viewer == nil {
		var err error
		if viewer, err = session.OpenViewer(ctx, s.cfg); err != nil {
			return nil, nil // the line does without
		}
	}
	views, err := inspect.Views(ctx, viewer, s.claim.Sought())
	if err != nil {
		viewer.Close()
		return nil, nil
	}
	return views, viewer
}

// rare writes a line to a log when it is time for one.
func (s *standing) rare(backend uint32, views []inspect.View) {
	waited := time.Since(s.since())
	if waited < s.due() {
		return
	}
	for s.due() <= waited {
		s.said++
	}
	s.v.log.Warn(oneLine(s.line(backend, views)), "event", "waiting")
}

// due is when, since the start, a log gets its next line: after the last of the
// minutes, whenever as much time has passed again.
func (s *standing) due() time.Duration {
	minutes := [...]int{0, 1, 2, 5, 10, 20, 30, 60}
	last := len(minutes) - 1
	if s.said <= last {
		return time.Duration(minutes[s.said]) * time.Minute
	}
	return time.Duration(minutes[last]) * time.Minute << min(s.said-last, 10)
}

// foreground is the width of the terminal that a file is, or 0 if it is none or
// this process is in its background.
func foreground(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return 0
	}
	const narrowest = 20 // some say 0
	return max(int(size.Col), narrowest)
}

// watch is what the runner tells people and systemd; work is what it does while
// a command runs.
func (o *options) watch(v *voice, cfg runner.Config, work string) runner.Watch {
	s := &standing{v: v, cfg: cfg.Session, claim: cfg.Claim, out: outage{v: v}}
	s.cfg.ApplicationName = "pglead"
	_ = s.since()
	canLive := v.canLive()
	var w runner.Watch
	switch {
	case canLive:
		w.Beside = s.live
	case os.Getenv("CI") != "" && !o.quiet:
		w.Waiting = s.rare
	}
	w.Away = func(obstacle error) {
		if obstacle == nil {
			s.show(nil)
			s.out.answers()
			return
		}
		s.out.away(obstacle)
		if canLive {
			wait := s.since()
			s.show(func() string { return "waiting for " + brief(time.Since(wait)) + ": " + obstacle.Error() })
		}
	}
	w.Delayed = func(until time.Time) {
		switch {
		case until.IsZero():
			s.show(nil)
		case canLive && len(cfg.Claim.Locks) > 0: // and not each, which has its own
			s.show(func() string {
				return "the lock is granted; its last holder may live on for another " + brief(max(0, time.Until(until)))
			})
		}
	}
	w.Leading = s.over
	if n := newNotifier(); n != nil {
		n.watch(s, &w, work)
	}
	return w
}
