package evidence

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	plain := Announcement{Word: Clean, Token: 281474976711380, Lease: 15 * time.Second}
	with := func(change func(*Announcement)) Announcement {
		a := plain
		change(&a)
		return a
	}
	const text = "clean 281474976711380 15000 0"
	for payload, want := range map[string]Announcement{
		text:                         plain,
		text + " more of version 2":  plain,
		text + " ":                   plain,
		text + " all":                with(func(a *Announcement) { a.CoversEarlier = true }),
		text + " shared":             with(func(a *Announcement) { a.Shared = true }),
		text + " to=4711":            with(func(a *Announcement) { a.To = 4711 }),
		text + " all to=4711":        with(func(a *Announcement) { a.CoversEarlier, a.To = true, 4711 }),
		text + " new all x to=1":     with(func(a *Announcement) { a.CoversEarlier, a.To = true, 1 }),
		text + " to=x":               plain,
		text + " to=4294967296":      plain,
		text + " lsn=1/16B3748 to=1": with(func(a *Announcement) { a.LSN, a.To = 1<<32|0x16B3748, 1 }),
		text + " lsn=-1/0":           plain,
		text + " lsn=0/100000000":    plain,
		text + " to=-1":              plain,
		"started" + text[5:]:         with(func(a *Announcement) { a.Word = Started }),
		"dead" + text[5:]:            with(func(a *Announcement) { a.Word = Dead }),
		"left" + text[5:] + " to=7":  with(func(a *Announcement) { a.Word, a.To = Left, 7 }),
		"clean 281474976711380 15000 9223372036854775807": with(func(a *Announcement) { a.LostGrace = longestAnnounced }),
	} {
		if got, ok := parse(payload); !ok || got != want {
			t.Errorf("%q is %+v, %v, want %+v", payload, got, ok, want)
		}
	}
	for _, payload := range []string{
		"", "clean", "clean 1 2", "dirty 1 2 3", "clean x 2 3", "clean 1 -2 3", "started 1 2 99999999999999999999",
		"Clean 1 2 3", " clean 1 2 3", "clean  1 2 3", "prefer host 60", "clean 1 2 3x",
	} {
		if got, ok := parse(payload); ok {
			t.Errorf("%q is taken for %+v", payload, got)
		}
	}
}

// payloadOf is the text by which a session makes an announcement.
func payloadOf(a Announcement) string {
	fields := []string{string(a.Word), fmt.Sprint(a.Token), fmt.Sprint(a.Lease.Milliseconds()), fmt.Sprint(a.LostGrace.Milliseconds())}
	if a.Shared {
		fields = append(fields, sharedField)
	}
	if a.CoversEarlier {
		fields = append(fields, allField)
	}
	if a.To != 0 {
		fields = append(fields, ToField+fmt.Sprint(a.To))
	}
	if a.LSN != 0 {
		fields = append(fields, fmt.Sprintf("%s%X/%X", LSNField, uint32(a.LSN>>32), uint32(a.LSN)))
	}
	return strings.Join(fields, " ")
}

// FuzzParse: what strangers say does no harm.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"started 281474976711380 15000 0", "started 1 2 3 shared all", "clean 1 2 3 4", "clean 1 2 3 all to=4711",
		"dead 1 2 3 all", "left 1 2 3 to=4294967295", "clean 1 2 3 to=4294967296", "clean 9223372036854775807 9223372036854775807 9223372036854775807",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		a, ok := parse(payload)
		if !ok {
			return
		}
		if a.Token < 0 || a.Lease < 0 || a.LostGrace < 0 || a.Lease > longestAnnounced || a.LostGrace > longestAnnounced || a.PID != 0 {
			t.Errorf("%q is %+v", payload, a)
		}
		again := payloadOf(a)
		if b, ok := parse(again); !ok || a != b {
			t.Errorf("%q is %+v, but %q is %+v", payload, a, again, b)
		}
	})
}
