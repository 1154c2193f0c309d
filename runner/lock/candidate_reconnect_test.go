package lock

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/session"
)

// outage is a server that is gone for a while, and then starts for a while.
type outage struct {
	began          time.Time
	gone, starting time.Duration
	rejected       int // attempts while it started, each of which is a line in its log
	attempts       int
}

func (o *outage) try() error {
	o.attempts++
	switch after := time.Since(o.began); {
	case after == 0:
		return &session.LostError{Cause: errors.New("the server ended the session")}
	case after < o.gone:
		return session.Errorf(session.Unreachable, "", "connection refused")
	case after < o.gone+o.starting:
		o.rejected++
		err := session.Errorf(session.Unreachable, "", "the database system is starting up")
		err.LoginRejected = true
		return err
	}
	return nil
}

// ended returns when the server answers, or when the candidate gives up.
func (o *outage) ended(ctx context.Context, c *Candidate) error {
	for {
		err := o.try()
		if err == nil {
			return nil
		}
		if err = c.outlast(ctx, err); err != nil {
			return err
		}
	}
}

// TestComingBack: a candidate that had the lock, or was one of the first in line, is back soon
// after the server is up, and leaves few lines in its log. The others take their time.
func TestComingBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		front          bool
		gone, starting time.Duration
		late           time.Duration
		rejected       int
		attempts       int
	}{
		{true, time.Second, 0, 250 * time.Millisecond, 0, 10},
		{true, 30 * time.Second, 0, 250 * time.Millisecond, 0, 250},
		{true, 5 * time.Second, 200 * time.Millisecond, 250 * time.Millisecond, 4, 60},
		{true, 5 * time.Second, 2 * time.Second, 3200 * time.Millisecond, 8, 60},
		{true, 5 * time.Second, time.Minute, 5 * time.Second, 25, 75},
		{true, 20 * time.Minute, 0, 5 * time.Second, 0, 900},
		{false, 30 * time.Second, 0, 5 * time.Second, 0, 20},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := &outage{began: time.Now(), gone: c.gone, starting: c.starting}
			candidate := NewCandidate(Config{Wait: Forever, Log: slog.New(slog.DiscardHandler), Session: session.Config{Database: &pgconn.Config{}}})
			candidate.begin()
			candidate.wait.front = c.front
			if err := o.ended(t.Context(), candidate); err != nil {
				t.Fatal(err)
			}
			if late := time.Since(o.began) - c.gone - c.starting; late > c.late {
				t.Errorf("%+v: back %v after the server", c, late)
			}
			if o.rejected > c.rejected || o.attempts > c.attempts {
				t.Errorf("%+v: %d attempts, %d while it started", c, o.attempts, o.rejected)
			}
		})
	}
}

// TestBackWithinWait: a run that waits for some time finds a server that is back before that time is
// over, and does not give up earlier.
func TestBackWithinWait(t *testing.T) {
	t.Parallel()
	const last = 600 * time.Millisecond
	for _, wait := range []time.Duration{2 * time.Second, 4 * time.Second, 5 * time.Second, 30 * time.Second, time.Minute} {
		for _, back := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				o := &outage{began: time.Now().Add(-time.Nanosecond), gone: wait - last} // it never had a session
				if !back {
					o.gone = time.Hour
				}
				candidate := NewCandidate(Config{Wait: wait, Log: slog.New(slog.DiscardHandler), Session: session.Config{Database: &pgconn.Config{}}})
				candidate.begin()
				err := o.ended(t.Context(), candidate)
				if took := time.Since(o.began); (err == nil) != back || took > wait || took < wait-last {
					t.Errorf("of %v: %v after %v", wait, err, took)
				}
			})
		}
	}
}

// TestReconnectsAnswered: a server that answers each attempt with an error writes a line to its log
// each time, so even the first in line asks it more and more seldom. A server that can't be reached
// is tried often.
func TestReconnectsAnswered(t *testing.T) {
	const most = 5 * time.Second // of crowd.UrgentBackoff
	for name, c := range map[string]struct {
		answer error
		most   time.Duration
	}{
		"it isn't ready":      {&session.Error{Kind: session.Unreachable, LoginRejected: true}, most},
		"it rejects a start":  {session.Rejected(&pgconn.PgError{Severity: "ERROR", Code: "42501"}, "start"), most},
		"it has no such role": {&session.Error{Kind: session.Denied, LoginRejected: true}, time.Minute}, // crowd.DeniedBackoff
	} {
		w := newWait()
		w.front = true
		var longest time.Duration
		for range 20 {
			longest = max(longest, w.pause(c.answer))
		}
		if longest < c.most/2 || longest > c.most {
			t.Errorf("%s: the longest pause is %v", name, longest)
		}
	}
	w := newWait()
	w.front = true
	for range 20 {
		if pause := w.pause(&session.Error{Kind: session.Unreachable}); pause > frontAgain {
			t.Fatalf("of a server that can't be reached: %v", pause)
		}
	}
	if w.pause(&session.LostError{Cause: errors.New("lost")}) > frontAgain {
		t.Error("after a loss")
	}
}
