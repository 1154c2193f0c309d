package lock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

func TestParseAnnouncement(t *testing.T) {
	plain := Announcement{OwnOnly: true, Word: wordClean, Token: 281474976711380, Lease: 15 * time.Second}
	with := func(change func(*Announcement)) Announcement {
		a := plain
		change(&a)
		return a
	}
	const text = "clean 281474976711380 15000 0"
	for payload, want := range map[string]Announcement{
		text:                        plain,
		text + " more of version 2": plain,
		text + " ":                  plain,
		text + " all":               with(func(a *Announcement) { a.OwnOnly = false }),
		text + " shared":            with(func(a *Announcement) { a.Shared = true }),
		text + " to=4711":           with(func(a *Announcement) { a.To = 4711 }),
		text + " all to=4711":       with(func(a *Announcement) { a.OwnOnly, a.To = false, 4711 }),
		text + " new all x to=1":    with(func(a *Announcement) { a.OwnOnly, a.To = false, 1 }),
		text + " to=x":              plain,
		text + " to=-1":             plain,
		"started" + text[5:]:        with(func(a *Announcement) { a.Word = wordStarted }),
		"dead" + text[5:]:           with(func(a *Announcement) { a.Word = wordDead }),
		"left" + text[5:] + " to=7": with(func(a *Announcement) { a.Word, a.To = wordLeft, 7 }),
		"clean 281474976711380 15000 9223372036854775807": with(func(a *Announcement) { a.LostGrace = longestAnnounced }),
	} {
		if got, ok := parseAnnouncement(payload); !ok || got != want {
			t.Errorf("%q is %+v, %v, want %+v", payload, got, ok, want)
		}
	}
	for _, payload := range []string{
		"", "clean", "clean 1 2", "dirty 1 2 3", "clean x 2 3", "clean 1 -2 3", "started 1 2 99999999999999999999",
		"Clean 1 2 3", " clean 1 2 3", "clean  1 2 3", "prefer host 60", "clean 1 2 3x",
	} {
		if got, ok := parseAnnouncement(payload); ok {
			t.Errorf("%q is taken for %+v", payload, got)
		}
	}
}

// payloadOf is what a session says of an announcement.
func payloadOf(a Announcement) string {
	fields := []string{string(a.Word), fmt.Sprint(a.Token), fmt.Sprint(a.Lease.Milliseconds()), fmt.Sprint(a.LostGrace.Milliseconds())}
	if a.Shared {
		fields = append(fields, sharedField)
	}
	if !a.OwnOnly {
		fields = append(fields, allField)
	}
	if a.To != 0 {
		fields = append(fields, toField+fmt.Sprint(a.To))
	}
	return strings.Join(fields, " ")
}

// FuzzParseAnnouncement: what strangers say does no harm.
func FuzzParseAnnouncement(f *testing.F) {
	for _, seed := range []string{
		"started 281474976711380 15000 0", "started 1 2 3 shared all", "clean 1 2 3 4", "clean 1 2 3 all to=4711",
		"dead 1 2 3 all", "left 1 2 3 to=4294967295", "clean 1 2 3 to=4294967296", "clean 9223372036854775807 9223372036854775807 9223372036854775807",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		a, ok := parseAnnouncement(payload)
		if !ok {
			return
		}
		if a.Token < 0 || a.Lease < 0 || a.LostGrace < 0 || a.Lease > longestAnnounced || a.LostGrace > longestAnnounced || a.PID != 0 {
			t.Errorf("%q is %+v", payload, a)
		}
		again := payloadOf(a)
		if b, ok := parseAnnouncement(again); !ok || a != b {
			t.Errorf("%q is %+v, but %q is %+v", payload, a, again, b)
		}
	})
}

// TestSeats: whatever a session says of itself is bounded, and what isn't known is 0.
func TestSeats(t *testing.T) {
	row := func(name, query string) []string {
		return []string{
			"f", "4294967295", "7", "2", "ExclusiveLock", "t", "4711", "10", name,
			"t", "2026-01-01 00:00:00+00", "2026-01-01 00:00:01+00", "1.5", query, "3", "2", "11",
		}
	}
	s, err := parseSeat(row("pglead:#281474976711380 key@host", "/*pglead beat='7',grace='5s',lease='30s'*/ SELECT 1"))
	want := seat{
		id: lockkey.ID{Number: -1<<32 | 7, Pair: true}, pid: 4711, role: 10, token: 281474976711380, delay: 25 * time.Second,
		visible: true, opened: "2026-01-01 00:00:00+00", changed: "2026-01-01 00:00:01+00", age: 1500 * time.Millisecond, beat: 7,
	}
	if err != nil || s != want {
		t.Errorf("a holder is %+v, %v, want %+v", s, err, want)
	}
	for _, name := range []string{"", "key@host", "pglead:key@host", "pglead:#", "pglead:#x key", "pglead:#7", "pglead:#-7 key", "psql pglead:#7 x", "pglead:#9223372036854775808 x"} {
		if token, _ := shownToken(name); token != 0 {
			t.Errorf("%q shows the token %d", name, token)
		}
	}
	for query, want := range map[string]seat{
		"SELECT 1":                                   {},
		"/*pglead lease='30s'*/ SELECT 1":            {}, // an older version's
		"/*pglead beat='x',lease='30s'*/ ":           {},
		"/*pglead beat='0',lease='30s'*/ ":           {},
		"/*pglead beat='1',lease='3000h'*/":          {beat: 1, delay: longestAnnounced},
		"/*pglead beat='1',delay='3000h'*/":          {beat: 1, delay: longestAnnounced},
		"/*pglead beat='1',delay='-3h'*/":            {beat: 1}, // or a silence would be long enough at once
		"/*pglead beat='1',lease='30s',delay='1h'*/": {beat: 1, delay: time.Hour},
		"/*pglead beat='1',mode='transaction'*/":     {beat: 1, bound: true},
		"/*pglead beat='18446744073709551615'*/":     {beat: 1<<64 - 1},
	} {
		s, err := parseSeat(row("psql", query))
		if err != nil || s.beat != want.beat || s.delay != want.delay || s.bound != want.bound {
			t.Errorf("%q is %+v, %v, want %+v", query, s, err, want)
		}
	}
	for _, column := range []int{1, 2, 6} {
		bad := row("", "")
		bad[column] = "x"
		if s, err := parseSeat(bad); err == nil {
			t.Errorf("a row with a bad column %d is %+v", column, s)
		}
	}
	var l look
	if err := l.parse(session.Rows{{"short"}}, 1); err == nil {
		t.Error("a short row is taken")
	}
}

// TestAskerName: what stands in the name of one who asks is read again, as far as
// the server lets it stand.
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
