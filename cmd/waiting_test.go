package cmd

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// TestRareLines: a CI log is told at the start, and then less and less often.
func TestRareLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		v := newVoice(&log)
		v.configure(false, false, false, []string{"deploy"})
		s := &standing{v: v, began: time.Now()}
		var minutes []int
		for ; time.Since(s.began) < 5*time.Hour; time.Sleep(20 * time.Second) {
			before := log.Len()
			s.rare(1, nil, nil)
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
		// Late by hours, it is one line and not all that were due.
		log.Reset()
		time.Sleep(100 * time.Hour)
		s.rare(1, nil, errors.New("connect to db: refused"))
		s.rare(1, nil, errors.New("connect to db: refused"))
		if got := log.String(); got != "pglead: deploy: waiting for 4d9h: connect to db: refused\n" {
			t.Errorf("late: %s", got)
		}
	})
}

func TestWaitingLine(t *testing.T) {
	id := lockkey.SipHash24("k")
	now := time.Now()
	holder := session.View{
		ID: id, Granted: true, Backend: 1, Described: true, Now: now,
		Description: session.Description{Keys: []string{"k"}, Host: "web1", Command: "job", PID: 7, User: "cron"},
	}
	shared := holder
	shared.Backend, shared.Shared = 4, true
	waiter := func(backend uint32, waiting time.Duration) session.View {
		return session.View{ID: id, Backend: backend, Waiting: waiting, Now: now}
	}
	for want, views := range map[string][]session.View{
		"waiting": {},
		"waiting; held by web1 (job, process 7 of cron)":                                      {holder},
		"waiting; held by web1 (job, process 7 of cron) and 1 more":                           {holder, shared},
		"waiting (number 2 of 3 in line); held by web1 (job, process 7 of cron)":              {holder, waiter(2, 3), waiter(3, 1), waiter(9, 2)},
		"waiting (2 in line); held by web1 (job, process 7 of cron)":                          {holder, waiter(2, 3), waiter(3, 1)},
		"waiting; held by a program that is not pglead (role r, application \"\", backend 5)": {{ID: id, Granted: true, Backend: 5, Role: "r"}},
	} {
		s := &standing{began: time.Now()}
		if got := s.line(9, views, nil); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
