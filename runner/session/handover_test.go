package session

import (
	"fmt"
	"testing"
	"time"
)

func TestEvidence(t *testing.T) {
	started := func(token int64) Announcement {
		return Announcement{Token: token, Lease: 30 * time.Second, LostGrace: 5 * time.Second}
	}
	clean := func(token int64) Announcement {
		return Announcement{Clean: true, Token: token, Lease: 30 * time.Second, LostGrace: 5 * time.Second}
	}
	const own, theirs = 10 * time.Second, 25 * time.Second
	for _, tt := range []struct {
		name  string
		heard []Announcement
		want  time.Duration
	}{
		{"nothing", nil, own},
		{"the end of one that had started before", []Announcement{clean(1)}, 0},
		{"a start", []Announcement{started(1)}, theirs},
		{"a start and its end", []Announcement{started(1), clean(1)}, 0},
		{"an end and the next start", []Announcement{clean(1), started(2)}, theirs},
		{"two whole lives", []Announcement{clean(1), started(2), clean(2)}, 0},
		{"a start and another's end", []Announcement{started(2), clean(1)}, theirs},
		{"an unclean life between clean ones", []Announcement{started(1), started(2), clean(2)}, 0},
	} {
		var e Evidence
		for _, a := range tt.heard {
			e.hear(a)
		}
		if got := e.Delay(own); got != tt.want {
			t.Errorf("%s: waits %v, want %v", tt.name, got, tt.want)
		}
		if got := e.Delay(0); got != 0 {
			t.Errorf("%s: waits %v with a lock-delay of 0", tt.name, got)
		}
		if got := e.Delay(time.Minute); tt.want > 0 && got != time.Minute {
			t.Errorf("%s: waits %v with a lock-delay of a minute", tt.name, got)
		}
	}
}

func TestParseAnnouncement(t *testing.T) {
	want := Announcement{Clean: true, Token: 281474976711380, Lease: 15 * time.Second, LostGrace: 0}
	for _, payload := range []string{"clean 281474976711380 15000 0", "clean 281474976711380 15000 0 more of version 2"} {
		if got, ok := parseAnnouncement(payload); !ok || got != want {
			t.Errorf("%q is %+v, %v", payload, got, ok)
		}
	}
	for _, payload := range []string{
		"", "clean", "clean 1 2", "dirty 1 2 3", "clean x 2 3", "clean 1 -2 3", "started 1 2 99999999999999999999",
		"Clean 1 2 3", " clean 1 2 3",
	} {
		if got, ok := parseAnnouncement(payload); ok {
			t.Errorf("%q is taken for %+v", payload, got)
		}
	}
}

func FuzzParseAnnouncement(f *testing.F) {
	f.Add("started 281474976711380 15000 0")
	f.Add("clean 1 2 3 4")
	f.Fuzz(func(t *testing.T, payload string) {
		a, ok := parseAnnouncement(payload)
		if !ok {
			return
		}
		if a.Lease < 0 || a.LostGrace < 0 || a.Lease > longestAnnounced || a.LostGrace > longestAnnounced {
			t.Errorf("%q is %+v", payload, a)
		}
		event := "started"
		if a.Clean {
			event = "clean"
		}
		again := fmt.Sprintf("%s %d %d %d", event, a.Token, a.Lease.Milliseconds(), a.LostGrace.Milliseconds())
		if b, ok := parseAnnouncement(again); !ok || a != b {
			t.Errorf("%q is %+v, but %q is %+v", payload, a, again, b)
		}
	})
}

// TestShares: what the promise rests on, for every lease that is allowed.
func TestShares(t *testing.T) {
	for _, lease := range []time.Duration{3 * time.Second, 15 * time.Second, time.Minute, time.Hour} {
		beat := lease / heartbeatsPerLease
		if HolderShare(lease) < 2*beat {
			t.Errorf("lease %v: one lost heartbeat is the end", lease)
		}
		if margin := TakeoverDelay(lease) - HolderShare(lease); margin < 200*time.Millisecond {
			t.Errorf("lease %v: only %v to kill in", lease, margin)
		}
		if TakeoverDelay(lease) >= lease {
			t.Errorf("lease %v: the holder may outlive it", lease)
		}
	}
}
