package lock

import (
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// TestSeats: what a session says of itself is bounded, and what isn't known is 0.
func TestSeats(t *testing.T) {
	row := func(name, query string) []string {
		return []string{
			"f", "4294967295", "7", "2", "ExclusiveLock", "t", "4711", "10", name,
			"2026-01-01 00:00:00+00", "2026-01-01 00:00:01+00", "1.5", query, "3", "2", "11",
		}
	}
	s, last, err := parseSeat(row("pglead:#281474976711380 key@host", "/*pglead beat='7',grace='5s',lease='30s'*/ SELECT 1"))
	want := evidence.Seat{
		ID: lockkey.ID{Number: -1<<32 | 7, Pair: true}, PID: 4711, Role: 10, Token: 281474976711380, Outlives: 25 * time.Second,
		Opened: "2026-01-01 00:00:00+00",
	}
	wantLast := lastRequest{pid: 4711, opened: want.Opened, changed: "2026-01-01 00:00:01+00", age: 1500 * time.Millisecond, number: 7}
	if err != nil || s != want || last != wantLast {
		t.Errorf("a holder is %+v, and its request %+v, %v, want %+v and %+v", s, last, err, want, wantLast)
	}
	for query, want := range map[string]struct {
		delay  time.Duration
		number uint64
	}{
		"SELECT 1":                                           {},
		"/*pglead lease='30s'*/ SELECT 1":                    {}, // an older version's
		"/*pglead beat='x',lease='30s'*/ ":                   {},
		"/*pglead beat='0',lease='30s'*/ ":                   {},
		"/*pglead beat='1',lease='3000h'*/":                  {evidence.LongestAnnounced, 1},
		"/*pglead beat='1',delay='3000h'*/":                  {evidence.LongestAnnounced, 1},
		"/*pglead beat='1',delay='-3h'*/":                    {0, 1}, // otherwise any silence would be long enough
		"/*pglead beat='1',lease='30s',delay='1h'*/":         {time.Hour, 1},
		"/*pglead beat='1',lease='30s',mode='transaction'*/": {20 * time.Second, 0}, // nobody watches it
		"/*pglead beat='18446744073709551615'*/":             {0, 1<<64 - 1},
	} {
		s, last, err := parseSeat(row("psql", query))
		if err != nil || last.number != want.number || last.number == 0 && last != (lastRequest{}) || s.Outlives != want.delay {
			t.Errorf("%q is %+v, %+v, %v, want %+v", query, s, last, err, want)
		}
	}
	hidden := row("psql", "/*pglead beat='1'*/")
	hidden[seatOpened] = ""
	if _, last, err := parseSeat(hidden); err != nil || last != (lastRequest{}) {
		t.Errorf("a session that this role may not see has sent %+v, %v", last, err)
	}
	for _, column := range []int{1, 2, 6} {
		bad := row("", "")
		bad[column] = "x"
		if s, _, err := parseSeat(bad); err == nil {
			t.Errorf("a row with a bad column %d is %+v", column, s)
		}
	}
	var l look
	if err := l.parse(session.Rows{{"short"}}, 1); err == nil {
		t.Error("a short row is taken")
	}
}

// TestAskerName: what the name of an asking session says is read back, as far as the server doesn't
// cut it off.
func TestAskerName(t *testing.T) {
	for _, tt := range []struct{ by, to string }{{"cron on web1", ""}, {"cron on web1", "web2"}, {"a by b", "web2"}} {
		if by, to := parseAsker(askerName(tt.by, tt.to)); by != tt.by || to != tt.to {
			t.Errorf("%q asks for %q: read as %q and %q", tt.by, tt.to, by, to)
		}
	}
	if by, to := parseAsker("psql"); by != "" || to != "" {
		t.Errorf("another program is %q and %q", by, to)
	}
	for host, want := range map[string]string{"web-1.example": "web-1.example", "a'b%c_d\\": "a_b_c_d_", "é": "_"} {
		if got := likeable(host); got != want {
			t.Errorf("%q is %q in a pattern", host, got)
		}
	}
}
