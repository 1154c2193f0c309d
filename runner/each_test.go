package runner

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/boottime"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

func id(n int64) lockkey.ID { return lockkey.ID{Number: n} }

func TestEndsAreForgotten(t *testing.T) {
	e := itemEnds{known: map[lockkey.ID]itemEnd{}}
	e.add(id(-1), itemEnd{ok: true})
	e.add(id(-1), itemEnd{}) // the latest end counts, and takes no room
	if end, ended := e.of(id(-1)); end.ok || !ended {
		t.Errorf("%+v, ended %v", end, ended)
	}
	for n := range int64(mostEnds) {
		e.add(id(n), itemEnd{ok: true})
	}
	if _, ended := e.of(id(-1)); ended {
		t.Error("the oldest is remembered")
	}
	if end, ended := e.of(id(0)); !end.ok || !ended || len(e.known) != mostEnds {
		t.Errorf("%+v, ended %v; %d are remembered", end, ended, len(e.known))
	}
}

// TestHearOfOwn: that an item has run here stays known when a later end elsewhere is heard of.
func TestHearOfOwn(t *testing.T) {
	e := &each{ends: itemEnds{known: map[lockkey.ID]itemEnd{}}}
	e.ends.add(id(7), itemEnd{here: true})
	for _, ok := range []bool{false, true} {
		e.hear(id(7), ok)
		if end, ended := e.ends.of(id(7)); end != (itemEnd{ok: ok, here: true}) || !ended {
			t.Errorf("ok %v: %+v, ended %v", ok, end, ended)
		}
	}
}

func TestBidsAreBounded(t *testing.T) {
	bs := bids{kept: map[lockkey.ID]*lock.Bid{}}
	for n := range int64(mostHeard) {
		if !bs.keep(id(n), lock.NewBid(nil, lock.Config{}, false)) {
			t.Fatalf("no room for %d", n)
		}
	}
	if bs.keep(id(mostHeard), lock.NewBid(nil, lock.Config{}, false)) || !bs.keep(id(0), bs.of(id(0))) {
		t.Error("it is not the known ones that are kept")
	}
}

// TestJobs: a signal reaches all commands, and a deadline those of its session. Only the latest
// deadline counts.
func TestJobs(t *testing.T) {
	one, other := &session.Session{}, &session.Session{}
	js := jobs{active: map[lockkey.ID]*job{}}
	enter := func(n int64, key string, s *session.Session) *job {
		j := &job{Task: Task{Key: key, ID: id(n)}, session: s, signals: make(chan os.Signal, 1), renewed: make(chan boottime.Instant, 1)}
		if js.enter(j) != nil || js.enter(j) != j {
			t.Errorf("%s is not at work once", key)
		}
		return j
	}
	a, b := enter(1, "a", one), enter(2, "b", other)
	js.signal(unix.SIGUSR1)
	js.signal(unix.SIGUSR2) // there is no room for it, and nothing waits
	js.renew(one, 1)
	js.renew(one, 2)
	if sig := <-a.signals; sig != unix.SIGUSR1 || len(a.signals) != 0 || len(b.signals) != 1 {
		t.Errorf("signal %v", sig)
	}
	if deadline := <-a.renewed; deadline != 2 || len(b.renewed) != 0 {
		t.Errorf("deadline %v", deadline)
	}
	if keys, delay := js.shown(one); len(keys) != 1 || keys[0] != "a" || delay != 0 {
		t.Errorf("keys %q, delay %v", keys, delay)
	}
	js.leave(a)
	enter(1, "a again", one)
}
