package evidence

import (
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
)

// TestSeats: what a session says of itself is bounded, and what isn't known is 0.
func TestSeats(t *testing.T) {
	row := func(name, query string) []string {
		return []string{
			"f", "4294967295", "7", "2", "ExclusiveLock", "4711", "10", name,
			"2026-01-01 00:00:00+00", "2026-01-01 00:00:01+00", "1.5", query, "3", "2", "11",
		}
	}
	s, ok := parseSeat(row("pglead:#281474976711380 key@host", "/*pglead beat='7',grace='5s',lease='30s'*/ SELECT 1"))
	want := Seat{
		ID: lockkey.ID{Number: -1<<32 | 7, Pair: true}, PID: 4711, Role: 10, Token: 281474976711380, Outlives: 25 * time.Second,
		Opened: "2026-01-01 00:00:00+00", Request: 7, Changed: "2026-01-01 00:00:01+00", Age: 1500 * time.Millisecond,
	}
	if !ok || s != want {
		t.Errorf("a holder is %+v, %t, want %+v", s, ok, want)
	}
	for query, want := range map[string]struct {
		delay  time.Duration
		number uint64
	}{
		"SELECT 1":                                           {},
		"/*pglead lease='30s'*/ SELECT 1":                    {}, // an older version's
		"/*pglead beat='x',lease='30s'*/ ":                   {},
		"/*pglead beat='0',lease='30s'*/ ":                   {},
		"/*pglead beat='1',lease='3000h'*/":                  {longestAnnounced, 1},
		"/*pglead beat='1',delay='3000h'*/":                  {longestAnnounced, 1},
		"/*pglead beat='1',lease='2000000h'*/":               {longestAnnounced, 1}, // twice that is more than a Duration can say
		"/*pglead beat='1',delay='-3h'*/":                    {0, 1},                // otherwise any silence would be long enough
		"/*pglead beat='1',lease='30s',delay='1h'*/":         {time.Hour, 1},
		"/*pglead beat='1',lease='30s',mode='transaction'*/": {20 * time.Second, 0}, // nobody watches it
		"/*pglead beat='18446744073709551615'*/":             {0, 1<<64 - 1},
	} {
		s, ok := parseSeat(row("psql", query))
		if !ok || s.Request != want.number || s.Request == 0 && (s.Changed != "" || s.Age != 0) || s.Outlives != want.delay {
			t.Errorf("%q is %+v, %t, want %+v", query, s, ok, want)
		}
	}
	hidden := row("psql", "/*pglead beat='1'*/")
	hidden[seatOpened] = ""
	if s, ok := parseSeat(hidden); !ok || s.Request != 0 {
		t.Errorf("a session that this role may not see has sent %+v, %t", s, ok)
	}
	for _, column := range []int{1, 2, 5} {
		bad := row("", "")
		bad[column] = "x"
		if s, ok := parseSeat(bad); ok {
			t.Errorf("a row with a bad column %d is %+v", column, s)
		}
	}
	var l Look
	if l.Parse([][]string{{"short"}}, 1) {
		t.Error("a short row is taken")
	}
}
