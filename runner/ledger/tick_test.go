package ledger_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	_ "time/tzdata" // a machine may have no time zones

	"github.com/pglead/pglead/runner/ledger"
)

func TestParsePeriod(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour, "1d": 24 * time.Hour, "24h": 24 * time.Hour,
		"5m": 5 * time.Minute, "6h": 6 * time.Hour, "300": 5 * time.Minute, "1s": time.Second,
	} {
		if got, err := ledger.ParsePeriod(text); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "7m", "25h", "48h", "week", "-5m", "1.5s", "500ms", "1h1m", "36028797018964028", "-36028797018963908"} {
		if got, err := ledger.ParsePeriod(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

// node is one of a simulation. Its cron goes by its own clock.
type node struct {
	skew time.Duration
	down func(at time.Time) bool
}

// firing is a start of pglead by a node's cron.
type firing struct {
	at   time.Time // the true time
	tick ledger.Tick
}

// fire makes cron start pglead at each time by the node's own clock, or up to delay later.
func (n node) fire(times []time.Time, zone *time.Location, per, delay time.Duration, r *rand.Rand) (all []firing) {
	for _, local := range times {
		local = local.Add(time.Duration(r.Int64N(int64(delay))))
		at := local.Add(-n.skew)
		if n.down == nil || !n.down(at) {
			all = append(all, firing{at, *ledger.TickOf(per, func() time.Time { return local.In(zone) })})
		}
	}
	return all
}

// successes plays firings by the rule for starts, and says how often each tick had a success. takes
// is how long a job runs; a firing that finds it running gives up.
func successes(firings []firing, takes time.Duration, succeeds func() bool) map[time.Time]int {
	slices.SortFunc(firings, func(a, b firing) int { return a.at.Compare(b.at) })
	var done, busy time.Time
	ran := map[time.Time]int{}
	for _, f := range firings {
		if f.at.Before(busy) || !done.Before(f.tick.At) { // the rule: ok_tick < tick
			continue
		}
		busy = f.at.Add(takes)
		if succeeds() {
			done = f.tick.At
			ran[f.tick.At]++
		}
	}
	return ran
}

// TestCrons: nodes' clocks differ, half of the nodes are down at any time, and jobs fail. Still no
// tick has two successes, and a tick has none only if it failed on every node that was up.
func TestCrons(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, per := range []time.Duration{time.Minute, 5 * time.Minute, time.Hour} {
		begin := time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC)
		var times []time.Time
		for i := range 500 {
			times = append(times, begin.Add(time.Duration(i)*per))
		}
		var firings []firing
		for range 6 {
			n := node{skew: time.Duration(r.Int64N(int64(50*time.Second))) - 25*time.Second, down: func(time.Time) bool { return r.IntN(2) == 0 }}
			firings = append(firings, n.fire(times, time.UTC, per, 5*time.Second, r)...)
		}
		fired := map[time.Time]bool{}
		for _, f := range firings {
			fired[f.tick.At] = true
		}
		for at, n := range successes(firings, 100*time.Millisecond, func() bool { return true }) {
			if n != 1 {
				t.Errorf("once per %v: %d successes at %v", per, n, at)
			}
			delete(fired, at)
		}
		if len(fired) > 0 {
			t.Errorf("once per %v: missed %d", per, len(fired))
		}
		for at, n := range successes(firings, 10*time.Second, func() bool { return r.IntN(3) > 0 }) {
			if n != 1 {
				t.Errorf("once per %v, with failures: %d successes at %v", per, n, at)
			}
		}
	}
}

// TestCronsDaily: a cron fires every ten minutes from three o'clock on, so that a missed run is
// made up for on the same day. That works through both changes of the clock and an outage.
func TestCronsDaily(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, begin := range []time.Time{time.Date(2026, 3, 25, 0, 0, 0, 0, zone), time.Date(2026, 10, 21, 0, 0, 0, 0, zone)} {
		var times []time.Time
		for at := begin; at.Before(begin.AddDate(0, 0, 10)); at = at.Add(10 * time.Minute) {
			if at.In(zone).Hour() >= 2 { // the hour that is missing in March, and comes twice in October
				times = append(times, at)
			}
		}
		outage := begin.AddDate(0, 0, 3)
		down := func(at time.Time) bool {
			return at.After(outage) && at.Before(outage.Add(20*time.Hour)) || r.IntN(2) == 0
		}
		var firings []firing
		for _, skew := range []time.Duration{-2 * time.Minute, 0, 3 * time.Minute} {
			firings = append(firings, node{skew, down}.fire(times, zone, 24*time.Hour, time.Minute, r)...)
		}
		ran := successes(firings, 25*time.Minute, func() bool { return r.IntN(4) > 0 })
		if len(ran) != 10 {
			t.Errorf("from %v: %d of 10 days", begin, len(ran))
		}
		for at, n := range ran {
			if n != 1 {
				t.Errorf("%d successes on %v", n, at)
			}
		}
	}
}

func TestTickNames(t *testing.T) {
	tokyo, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		t.Fatal(err)
	}
	morning := time.Date(2026, 11, 22, 3, 4, 5, 0, tokyo)
	if got := ledger.TickOf(24*time.Hour, func() time.Time { return morning }); got.String() != "2026-11-22" || !got.At.Equal(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("a day in Tokyo: %v, %v", got, got.At)
	}
	if got := ledger.TickOf(6*time.Hour, func() time.Time { return morning }); !got.At.Equal(time.Date(2026, 11, 21, 18, 0, 0, 0, time.UTC)) {
		t.Errorf("six hours in Tokyo: %v", got.At)
	}
}
