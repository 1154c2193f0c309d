package inspect

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/visible"
)

// statement is what the server shows of a session with that comment.
func statement(comment string, beat uint64) string {
	return fmt.Sprintf("/*pglead beat='%d',%s*/ SELECT 1", beat, comment)
}

// FuzzDescription: what a session says of itself arrives, and whatever it says
// is one comment, which nothing in it ends.
func FuzzDescription(f *testing.F) {
	f.Add("invoice_gen/SUB-1234", "web1", "cron", "job", 4711, int64(1<<48+7), true)
	f.Add("*/ DROP TABLE x; /*", "'", "a=b,c='d'", "é\n%", -1, int64(-1), false)
	f.Add(strings.Repeat("ключ", 42), strings.Repeat("хост", 60), "\xff", strings.Repeat("x", 300), 1, int64(1), false)
	f.Fuzz(func(t *testing.T, key, host, user, command string, pid int, token int64, transaction bool) {
		d := Description{
			Keys: []string{key}, Scheme: "siphash24", Host: host, User: user, Command: command, PID: pid, Token: token,
			Lease: 15 * time.Second, Since: time.Unix(1<<30, 0).UTC(), Transaction: transaction,
		}
		comment := d.Comment()
		if strings.Contains(comment, "*/") || strings.Contains(comment, "/*") || strings.HasSuffix(comment, "*") || strings.HasSuffix(comment, "/") {
			t.Errorf("%q", comment)
		}
		if key == "" || strings.Contains(key, "\n") || len(comment) > mostDescribed-len("beat='18446744073709551615',") {
			return // no key is like that
		}
		got, ok := ParseDescription(statement(comment, 0))
		for _, text := range []*string{&d.Host, &d.User, &d.Command} {
			short, err := url.QueryUnescape(escapeShort(*text, mostNamed))
			if err != nil || utf8.ValidString(*text) && !strings.HasPrefix(*text, short) || len(url.QueryEscape(*text)) <= mostNamed && utf8.ValidString(*text) && short != *text {
				t.Errorf("%q is shortened to %q, %v", *text, short, err)
			}
			*text = short
		}
		if pid < 0 || pid > math.MaxInt32 {
			d.PID = 0
		}
		d.Token = max(0, token)
		if !ok || !reflect.DeepEqual(got, d) {
			t.Errorf("%+v arrives as %+v", d, got)
		}
		for _, beat := range []uint64{1, math.MaxUint32, math.MaxUint64} {
			d.Beat = beat
			got, ok := ParseDescription(statement(comment, beat))
			if !ok || !reflect.DeepEqual(got, d) {
				t.Errorf("with a number, %+v arrives as %+v", d, got)
			}
		}
	})
}

// FuzzParseDescription: what strangers write does no harm, and arrives in bounds.
func FuzzParseDescription(f *testing.F) {
	f.Add("/*pglead key='%zz',pid='x',lease='1y',token='9999999999999999999'*/")
	f.Add("/*pglead slots='1000000000000',pid='-1',lease='-3s',token='-7',slot='-9223372036854775808',key='a%0Ab'*/")
	f.Add("/*pglead since='0000-01-01T00:00:00%2B24:00'*/")
	f.Add("/*pglead key='" + strings.Repeat("a%0A", 500) + "',host='" + strings.Repeat("h", 500))
	f.Fuzz(func(t *testing.T, statement string) {
		d, ok := ParseDescription(statement)
		if ok != strings.HasPrefix(statement, "/*pglead ") {
			t.Errorf("%q is %+v, %v", statement, d, ok)
		}
		if d.PID < 0 || d.Slot < 0 || d.Slot > MostSlots || d.Slots < 0 || d.Slots > MostSlots || d.Token < 0 || d.Lease < 0 ||
			len(d.Keys) > MostKeys || d.Slots > 0 && len(d.Keys) > 1 || len(d.Host)+len(d.User)+len(d.Command)+len(d.Scheme) > 4*mostNamed {
			t.Errorf("%q is %+v", statement, d)
		}
		if _, err := json.Marshal(d.Since); err != nil {
			t.Errorf("%q: %v", statement, err)
		}
	})
}

// TestDescriptionCutOff: of a comment that is longer than what the server shows
// of a statement the keys are missing, and nothing else.
func TestDescriptionCutOff(t *testing.T) {
	const shown = 1024 - 1 // track_activity_query_size, with the byte that ends it
	longest := strings.Repeat("щ", 255)
	d := Description{
		Keys: []string{strings.Repeat("ключ", 42), "two"}, Scheme: "with-advisory-lock", Slots: 0, Host: strings.Repeat("host.", 50), PID: 4194304,
		User: longest, Command: longest, Lease: 100 * time.Hour, Transaction: true, Slot: 1000, Token: math.MaxInt64, Since: time.Unix(1<<30, 0).UTC(),
	}
	got, ok := ParseDescription(statement(d.Comment(), 0)[:shown])
	if !ok || len(got.Keys) > 0 || !strings.HasPrefix(d.Host, got.Host) || len(got.Host) < 190 || !strings.HasPrefix(longest, got.User) || got.User == "" || got.Command != got.User {
		t.Errorf("%+v arrives as %+v", d, got)
	}
	d.Keys, got.Keys, d.Host, d.User, d.Command = nil, nil, got.Host, got.User, got.Command
	if !reflect.DeepEqual(got, d) {
		t.Errorf("%+v arrives as %+v", d, got)
	}
	// A note takes what the rest leaves, and is not cut off by the server.
	d = Description{PID: 1, Host: "web1", User: "cron", Command: "job", Lease: 15 * time.Second, Keys: []string{"k"}}
	d.Note = "https://ci.example/org/app/-/jobs/4711"
	if got, ok := ParseDescription(statement(d.Comment(), 0)); !ok || !reflect.DeepEqual(got, d) {
		t.Errorf("%+v arrives as %+v", d, got)
	}
	d.Note = longest
	for _, name := range []string{"", longest} {
		d.Host, d.User, d.Command = name, name, name
		said := statement(d.Comment(), 0)
		got, _ = ParseDescription(said[:min(len(said), shown)])
		if !strings.HasPrefix(longest, got.Note) || name == "" && len(got.Note) < 90 || !slices.Equal(got.Keys, d.Keys) {
			t.Errorf("%+v arrives as %+v", d, got)
		}
	}
	d.Note = "*/'/*,key='x'\n\x1b"
	if got, _ := ParseDescription(statement(d.Comment(), 0)); got.Note != d.Note || !slices.Equal(got.Keys, d.Keys) {
		t.Errorf("%+v arrives as %+v", d, got)
	}
	// Of several keys those are there that are whole.
	d = Description{PID: 1, Keys: []string{"first", strings.Repeat("ключ", 100)}}
	if got, _ := ParseDescription(statement(d.Comment(), 0)[:shown]); len(got.Keys) != 1 || got.Keys[0] != "first" {
		t.Errorf("%+v", got)
	}
}

// TestOlderDescription: what the version before this one says is understood.
func TestOlderDescription(t *testing.T) {
	const comment = "/*pglead command='job',host='web1',key='a%2Fb%0Ac',lease='15s',mode='transaction',pid='7',scheme='siphash24'," +
		"since='2026-11-22T03%3A00%3A01Z',slot='2',slots='3',token='281474976740322',user='cron'*/ SELECT 1"
	want := Description{
		Command: "job", Host: "web1", Keys: []string{"a/b", "c"}, Lease: 15 * time.Second, Transaction: true, PID: 7, Scheme: "siphash24",
		Since: time.Date(2026, 11, 22, 3, 0, 1, 0, time.UTC), Token: 281474976740322, User: "cron",
	}
	if got, ok := ParseDescription(comment); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	want.Keys, want.Slot, want.Slots = []string{"a/b"}, 2, 3
	if got, _ := ParseDescription(strings.Replace(comment, "%0Ac", "", 1)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got, _ := ParseDescription(comment[:30]); got.Command != "job" || got.Host != "" {
		t.Errorf("cut off, it is %+v", got)
	}
}

// FuzzViews: whatever a server says of its locks, it is a view that can be shown,
// or an error.
func FuzzViews(f *testing.F) {
	f.Add("1", "2", "3", "ShareLock", "4.5", "role", "pglead:k@h", "/*pglead slots='1000',key='k',since='9999-12-31T23:59:59Z',lease='1ns'*/", "1700000000.5", "1600000000")
	f.Add("-1", "99999999999", "x", "", "NaN", "\x1b[2J", "@", "/*pglead lease='1ns'", "1e300", "-1e300")
	f.Fuzz(func(t *testing.T, class, obj, pid, mode, waiting, role, application, query, now, answered string) {
		row := []string{"db", class, obj, "1", mode, "t", pid, waiting, role, "", application, query, "f", now, "idle", answered}
		views, err := parseViews([][]string{row, row[:15]}, nil)
		if err == nil {
			t.Errorf("a row without its last column is %+v", views)
		}
		views, err = parseViews([][]string{row, row}, nil)
		if err != nil {
			return
		}
		for _, v := range views {
			text := v.String()
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !visible.Rune(r) }) || utf8.RuneCountInString(text) > 1000+10 {
				t.Errorf("%+v is shown as %q", v, text)
			}
			if v.HeldFor() < 0 || v.SilentFor() < 0 {
				t.Errorf("held for %v, silent for %v", v.HeldFor(), v.SilentFor())
			}
			v.Key()
		}
	})
}

// TestNamingIsBounded: however many sessions say that their keys have a thousand
// slots, so much is hashed, and then no more.
func TestNamingIsBounded(t *testing.T) {
	n := newNaming(nil)
	view := func(key string) View {
		id, err := lockkey.Schemes()[0].Slot(key, MostSlots)
		if err != nil {
			t.Fatal(err)
		}
		return View{ID: id, Described: true, Description: Description{Keys: []string{key}, Slots: MostSlots}}
	}
	if key, slot, known := n.of(view("first")); key != "first" || slot != MostSlots || !known {
		t.Errorf("slot %d of %q, %v", slot, key, known)
	}
	const sessions = 2000
	unknown := 0
	for i := range sessions {
		if _, _, known := n.of(view(fmt.Sprintf("%d%s", i, strings.Repeat("x", 1000)))); !known {
			unknown++
		}
	}
	hashes := 0
	for _, locks := range n.meant {
		hashes += len(locks)
	}
	if unknown == 0 || unknown == sessions || hashes > mostHashed/1000 {
		t.Errorf("%d of %d are unknown, after %d hashes", unknown, sessions, hashes)
	}
	// What was said before costs nothing.
	if _, _, known := n.of(view("first")); !known {
		t.Error("what was known is forgotten")
	}
}
