package main

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// small is the machine on which a thousand real nodes were measured: two processors for them and
// the server, which has 100 connections. Of these 3 are for superusers, and the measuring program
// has one.
func small(seed uint64) setup {
	return setup{processors: 2, connections: 96, lease: 15 * time.Second, beside: true, seed: seed}
}

// within fails unless a figure lies between least and most.
func within[N int | float64](t *testing.T, what string, got, least, most N) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s: %v, which is not %v to %v", what, got, least, most)
	}
}

// herd starts all nodes at the same instant. Each waits for its turn.
func herd(wait time.Duration) func(*scene, int) figures {
	return func(s *scene, nodes int) figures {
		l := &theLock{s: s}
		for range nodes {
			s.start(l, wait, lasting(0), nil)
		}
		s.run(forever / 2)
		return figures{nodes: nodes, day: s.tally, processors: s.server.busy.Seconds() / s.last.Seconds(), last: s.last,
			noAnswer: float64(s.unreachable) / float64(nodes), peak: s.peak}
	}
}

func TestWorkIsShared(t *testing.T) {
	w := newWorld(1)
	p := &processors{w: w, number: 2}
	var ends []time.Duration
	done := func() { ends = append(ends, w.now.Round(time.Millisecond)) }
	for _, seconds := range []time.Duration{1, 1, 2} { // three share two, and then the last has one
		p.work(seconds*time.Second, done)
	}
	w.run(time.Minute)
	want := []time.Duration{1500 * time.Millisecond, 1500 * time.Millisecond, 2500 * time.Millisecond}
	if !slices.Equal(ends, want) || p.busy != 4*time.Second {
		t.Errorf("done at %v after %v of work, want %v after 4s", ends, p.busy, want)
	}
}

func TestTheSameSeedIsTheSameDay(t *testing.T) {
	for name, play := range map[string]func(*scene, int) figures{"cron": cron(0), "herd": herd(5 * time.Minute), "ci": ci, "standby": standby} {
		one, same, other := play(newScene(small(1)), 200), play(newScene(small(1)), 200), play(newScene(small(2)), 200)
		if !reflect.DeepEqual(one, same) {
			t.Errorf("%s: %+v and %+v of one seed", name, one, same)
		}
		if reflect.DeepEqual(one, other) && name != "standby" {
			t.Errorf("%s: the seed changes nothing", name)
		}
	}
}

// However many nodes come at once, each has one answer, and no session is left behind.
func TestEachHasOneAnswer(t *testing.T) {
	for _, pooler := range []bool{false, true} {
		for _, nodes := range []int{1, 50, 300} {
			for seed := range uint64(5) {
				of := small(seed)
				of.pooler = pooler
				of.connections = 20
				of.beside = seed%2 == 0 // else all log in at the same instant
				s := newScene(of)
				f := herd(5*time.Minute)(s, nodes)
				if answers := s.ran + s.held + s.unreachable; answers != nodes {
					t.Fatalf("%d answers of %d nodes: %+v", answers, nodes, f)
				}
				if s.open != 0 || s.waiters != 0 || s.holders != 0 || len(s.queue) != 0 || len(s.server.pending) != 0 || len(s.due) != 0 {
					t.Fatalf("left behind: %d sessions, %d in line, %d holders", s.open, s.waiters, s.holders)
				}
				if s.peak > of.connections || s.logins > s.attempts || s.refused > s.attempts {
					t.Fatalf("more than there can be: %+v", s.tally)
				}
				if s.xids < s.ran || s.xids > 2*s.ran || s.words > 2*s.ran {
					t.Fatalf("%d runs took %d xids and %d words", s.ran, s.xids, s.words)
				}
				s = newScene(of)
				cron(0)(s, nodes)
				if s.ran != 1 || s.ran+s.held+s.unreachable != nodes {
					t.Fatalf("of %d nodes of cron %d ran, %d were refused, %d found no room", nodes, s.ran, s.held, s.unreachable)
				}
			}
		}
	}
}

func TestMoreOfEverythingForMore(t *testing.T) {
	for name, play := range map[string]func(*scene, int) figures{"cron": cron(0), "ci": ci, "standby": standby} {
		few, many := play(newScene(plain(1)), 100), play(newScene(plain(1)), 1000)
		if many.processors <= few.processors || many.peak < few.peak {
			t.Errorf("%s: %v processors and %d sessions for 100, %v and %d for 1000", name, few.processors, few.peak, many.processors, many.peak)
		}
	}
	short, long := plain(1), plain(1)
	long.lease = time.Minute
	if a, b := standby(newScene(short), 100), standby(newScene(long), 100); b.processors > a.processors*.6 {
		t.Errorf("a lease of a minute takes %v processors, one of 15 s %v", b.processors, a.processors)
	}
}

// A thousand real nodes at once, on a quiet machine. SCALE.md says how they were measured. With
// --wait 0 the last had its answer after 8.7 s, to which nodeCrowded is fitted; no login was
// refused, and the server wrote one token. With --wait 5m the last had run after 62.8 s.
func TestTheRealThousand(t *testing.T) {
	const nodes = 1000
	for seed := range uint64(5) {
		s := newScene(small(seed))
		cron(0)(s, nodes)
		t.Logf("--wait 0: %.1f s, %d logins, %d refused", s.last.Seconds(), s.logins, s.refused)
		within(t, "seconds to the last answer", s.last.Seconds(), 8.7*.9, 8.7*1.1)
		within(t, "logins", s.logins, nodes, nodes)
		within(t, "refused logins", s.refused, 0, 10)
		within(t, "transaction numbers", s.xids, 1, 1)
		within(t, "NOTIFYs", s.words, 0, 0)
	}
	for seed := range uint64(5) {
		s := newScene(small(seed))
		herd(5*time.Minute)(s, nodes)
		t.Logf("--wait 5m: %.1f s, %d logins, %d refused, %d xids, %d NOTIFYs, %d lock-delays", s.last.Seconds(), s.logins, s.refused, s.xids, s.words, s.delays)
		within(t, "ran in their turn", s.ran, nodes, nodes)
		within(t, "logins", float64(s.logins), 2314*.65, 2314*1.35)
		within(t, "refused logins", s.refused, 0, 137)
		within(t, "transaction numbers", s.xids, 1990, 1999)
		within(t, "NOTIFYs", float64(s.words), 1579*.75, 1579*1.25)
		within(t, "lock-delays", s.delays, 0, 2)
		within(t, "seconds to the last answer", s.last.Seconds(), 62.8/2, 62.8*1.5)
	}
}

// The page says what the program prints. This compares the smaller numbers of nodes, since all of
// them take a minute.
func TestThePageIsTheProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT TESTED: the page of the simulation")
	}
	text, err := os.ReadFile("../../../testdata/bench/SCALE.md")
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	play(1, 1000).print(&printed)
	compared := 0
	for row := range strings.Lines(printed.String()) {
		cells := strings.TrimSuffix(strings.TrimSpace(row), "|")
		if strings.HasPrefix(cells, "| processors") { // the page's has more columns
			continue
		}
		if !strings.ContainsAny(cells, "0123456789") {
			continue
		}
		compared++
		if !strings.Contains(string(text), "\n"+cells) {
			t.Errorf("SCALE.md lacks %s", cells)
		}
	}
	if compared < 10 {
		t.Errorf("%d rows were compared", compared)
	}
}
