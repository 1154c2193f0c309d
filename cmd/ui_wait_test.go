package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/describe"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// TestRareLines: a CI log is told at the start, and then less and less often.
func TestRareLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		u := newUI(&log)
		u.configure(false, false, false, []string{"deploy"})
		s := &waitReport{u: u, began: time.Now()}
		var minutes []int
		for ; time.Since(s.began) < 5*time.Hour; time.Sleep(20 * time.Second) {
			before := log.Len()
			s.logRarely(1, nil)
			if log.Len() > before {
				minutes = append(minutes, int(time.Since(s.began).Minutes()))
			}
		}
		if want := []int{0, 1, 2, 5, 10, 20, 30, 60, 120, 240}; !slices.Equal(minutes, want) {
			t.Errorf("lines after %v minutes, want %v:\n%s", minutes, want, &log)
		}
		if last := log.String(); !strings.HasSuffix(last, "pglead: deploy: waiting for 4h0m\n") {
			t.Errorf("the last is %s", last)
		}
		// If it is late by hours, there is one line, and not all that were due.
		log.Reset()
		time.Sleep(100 * time.Hour)
		s.logRarely(1, nil)
		s.logRarely(1, nil)
		if got := log.String(); got != "pglead: deploy: waiting for 4d9h\n" {
			t.Errorf("late: %s", got)
		}
	})
}

// TestPauseIsTold: a pause is told when it begins and, while it lasts, as rarely as a wait.
func TestPauseIsTold(t *testing.T) {
	t.Setenv("CI", "1")
	t.Setenv("NOTIFY_SOCKET", "")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		u := newUI(&log)
		u.configure(false, false, false, []string{"nightly"})
		o := &options{u: u}
		var cfg runner.Config
		o.observe(&cfg, "running")
		one := &ledger.PausedError{Pause: ledger.Pause{Until: ledger.Endless(), By: "ann", Note: "disk swap"}}
		other := &ledger.PausedError{Pause: ledger.Pause{Until: ledger.Endless(), By: "bob"}}
		began := time.Now()
		var told []string
		for _, why := range []*ledger.PausedError{one, other} {
			for range 100 {
				before := log.Len()
				cfg.Lock.Observer.Away(why)
				if log.Len() > before {
					told = append(told, fmt.Sprint(time.Since(began).Truncate(time.Minute), " ", log.String()[before:]))
				}
				time.Sleep(3 * time.Second)
			}
		}
		cfg.Lock.Observer.Away(nil)
		want := []string{"0s " + one.Error(), "1m0s " + one.Error(), "2m0s " + one.Error(), "5m0s " + other.Error()}
		for i := range want {
			want[i] = strings.Replace(want[i], "s ", "s pglead: nightly: ", 1) + "; waiting\n"
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// TestWorkersShareOneReport: the workers of a list tell of the same pause at the same time, and the
// log has it once. The race detector looks on.
func TestWorkersShareOneReport(t *testing.T) {
	t.Setenv("CI", "1")
	t.Setenv("NOTIFY_SOCKET", "")
	var log bytes.Buffer
	u := newUI(&log)
	u.configure(false, false, false, []string{"import/{}"})
	var cfg runner.Config
	(&options{u: u}).observe(&cfg, "running")
	const times = 50
	for range times {
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() { cfg.Lock.Observer.Away(&ledger.PausedError{Pause: ledger.Pause{Until: ledger.Endless()}}) })
		}
		workers.Wait()
		for range 8 {
			workers.Go(func() { cfg.Lock.Observer.Away(nil) })
		}
		workers.Wait()
	}
	if n := strings.Count(log.String(), "\n"); n != times {
		t.Errorf("%d lines for %d pauses:\n%s", n, times, log.String())
	}
}

// TestOutage: the log has a line when a database goes away, when the reason changes, rarely while
// it is away, and when it is back. A database that comes and goes gets no more lines than one that
// stays away.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		u := newUI(&log)
		u.configure(false, false, false, []string{"k"})
		o := &outage{u: u}
		said := func(want string) {
			t.Helper()
			if got := log.String(); got != want {
				t.Errorf("it says %q, want %q", got, want)
			}
			log.Reset()
		}
		refused := session.Errorf(session.Unreachable, "look there", "connect to db: refused")
		lost := &session.LostError{Cause: errors.New("terminating connection")}

		// A connection ends, and is replaced at once, again and again.
		for range 3 {
			o.away(lost)
			o.answers()
			said("")
			time.Sleep(4 * time.Second)
		}
		time.Sleep(time.Hour)

		o.away(lost)
		o.away(refused)
		said("pglead: k: the database is away: connect to db: refused\npglead: hint: look there\n")
		o.away(refused)
		o.away(lost)
		said("pglead: k: the database is still away: terminating connection\n")
		var minutes []int
		for began := time.Now(); time.Since(began) < 4*time.Hour; time.Sleep(5 * time.Second) {
			o.away(refused)
			o.away(lost)
			if log.Len() > 0 {
				minutes = append(minutes, int(time.Since(began).Minutes()))
				log.Reset()
			}
		}
		if want := []int{1, 5, 15, 60, 120, 180}; !slices.Equal(minutes, want) {
			t.Errorf("lines after %v minutes, want %v", minutes, want)
		}
		o.answers()
		o.answers()
		said("pglead: k: the database is back after 4h0m\n")

		// The database comes and goes.
		time.Sleep(time.Hour)
		for range 100 {
			o.away(refused)
			time.Sleep(3 * time.Second)
			o.answers()
			time.Sleep(3 * time.Second)
		}
		if n := strings.Count(log.String(), "\n"); n != 7 { // a hint, and three times away and back
			t.Errorf("in ten minutes of coming and going it says %d lines:\n%s", n, &log)
		}
		log.Reset()

		// The database answers, but refuses this role; then it answers, but its standbys are not
		// there. Such an answer does not end the obstacle.
		time.Sleep(time.Hour)
		o.away(session.Errorf(session.Denied, "ALTER ROLE cron LOGIN", "connect to db: no"))
		said("pglead: k: the database refuses the login: connect to db: no\npglead: hint: ALTER ROLE cron LOGIN\n")
		o.answers()
		said("pglead: k: the database accepts the login after 0s\n")

		// The database is full; then it is a standby, and is promoted. It answers all the time.
		time.Sleep(time.Hour)
		full := session.FullError("connect to db: too many clients")
		o.away(full)
		said("pglead: k: no connection to the database is free: connect to db: too many clients\n")
		time.Sleep(time.Minute)
		o.away(full)
		said("pglead: k: no connection to the database has been free for 1m0s: connect to db: too many clients\n")
		o.answers()
		said("pglead: k: a connection to the database is free after 1m0s\n")
		time.Sleep(time.Hour)
		o.away(refused)
		said("pglead: k: the database is away: connect to db: refused\npglead: hint: look there\n")
		standby := session.StandbyError()
		o.away(standby)
		said("pglead: k: no primary answers: " + standby.Error() + "\npglead: hint: " + standby.Hint + "\n")
		o.away(session.Errorf(session.Standby, "", "another"))
		said("pglead: k: still no primary answers: another\n")
		o.answers()
		said("pglead: k: a primary answers after 0s\n")
		time.Sleep(time.Hour)
		o.away(session.ErrUnconfirmed)
		said("pglead: k: the command can't start yet: the synchronous standbys do not confirm the commit\n")
		time.Sleep(10 * time.Second)
		o.answers()
		said("")
		o.away(session.ErrUnconfirmed)
		said("")
		o.answers()

		time.Sleep(time.Hour)
		o.away(session.Errorf(session.NoStandbys, "", "synchronous_standby_names is empty"))
		said("pglead: k: the command can't start yet: synchronous_standby_names is empty\n")
		o.answers()

		// It comes back in between. Then only the latest time counts.
		time.Sleep(time.Hour)
		denied := session.Errorf(session.Denied, "", "connect to db: no")
		for _, want := range []string{
			"the database refuses the login: connect to db: no\npglead: k: the database accepts the login after 3s\n", "",
			"the database refuses the login: connect to db: no\npglead: k: the database accepts the login after 3s\n",
		} {
			o.away(denied)
			time.Sleep(2 * time.Second)
			o.away(denied)
			time.Sleep(time.Second)
			o.answers()
			if want != "" {
				want = "pglead: k: " + want
			}
			said(want)
			time.Sleep(30 * time.Second)
		}

		// This host can't start a guard. That says nothing of the database.
		time.Sleep(time.Hour)
		o.away(errors.New("start the guard process: resource temporarily unavailable"))
		said("pglead: k: the command can't start yet: start the guard process: resource temporarily unavailable\n")
		o.answers()
		said("")

		// The server rejects a statement. It is not away.
		time.Sleep(time.Hour)
		o.away(session.Rejected(&pgconn.PgError{Code: session.QueryCanceled, Message: "canceled"}, "lock k"))
		said("pglead: k: the command can't start yet: lock k: canceled (57014)\n")
		o.answers()
		said("")

		// Each attempt has another reason.
		time.Sleep(time.Hour)
		for i := range 100 {
			o.away(fmt.Errorf("reason %d", i))
		}
		if n := strings.Count(log.String(), "\n"); n != mostReasons {
			t.Errorf("of a hundred reasons it says %d:\n%s", n, &log)
		}
	})
}

func TestWaitingLine(t *testing.T) {
	id := lockkey.SipHash24("k")
	now := time.Now()
	holder := inspect.View{
		ID: id, Granted: true, Backend: 1, Described: true, Now: now,
		Description: describe.Description{Keys: []string{"k"}, Host: "web1", Command: "job", PID: 7, User: "cron"},
	}
	shared := holder
	shared.Backend, shared.Shared = 4, true
	waiter := func(backend uint32, waiting time.Duration) inspect.View {
		return inspect.View{ID: id, Backend: backend, Waiting: waiting, Now: now}
	}
	for want, views := range map[string][]inspect.View{
		"waiting": {},
		"waiting; held by web1 (job, process 7 of cron)":                                      {holder},
		"waiting; held by web1 (job, process 7 of cron) and 1 more":                           {holder, shared},
		"waiting (number 2 of 3 in line); held by web1 (job, process 7 of cron)":              {holder, waiter(2, 3), waiter(3, 1), waiter(9, 2)},
		"waiting (2 in line); held by web1 (job, process 7 of cron)":                          {holder, waiter(2, 3), waiter(3, 1)},
		"waiting; held by a program that is not pglead (role r, application \"\", backend 5)": {{ID: id, Granted: true, Backend: 5, Role: "r"}},
	} {
		s := &waitReport{began: time.Now()}
		if got := s.line(9, views); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestGivenUpIsSaidOnce: the last line says that a wait was given up, also if its last reason is a
// new one, and repeats none.
func TestGivenUpIsSaidOnce(t *testing.T) {
	u := newUI(&bytes.Buffer{})
	u.configure(false, false, false, []string{"k"})
	o := &outage{u: u}
	said := func(err error, want string) {
		t.Helper()
		if got := u.endText(err); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	refused := session.Errorf(session.Unreachable, "look there", "connect to db: refused")
	said(refused, "connect to db: refused")
	o.away(refused)
	said(refused, "gave up: the database is still away")
	said(errors.New("connect to db: no answer"), "gave up: connect to db: no answer")
	lost := &runner.LockLostError{Database: "db", Cause: errors.New("gone"), What: "it was killed"}
	said(lost, "the lock in db was lost: gone; it was killed")
	said(child.ErrGuardDied, child.ErrGuardDied.Error())
	o.answers()
	said(errors.New("held elsewhere"), "held elsewhere")
}
