package describe

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
)

// statement is what the server shows of a session with that comment.
func statement(comment Comment, beat uint64) string {
	return fmt.Sprintf("/*pglead beat='%d',%s*/ SELECT 1", beat, comment)
}

// FuzzDescription: what a session says of itself arrives, and whatever it says
// is one comment, which nothing in it ends.
func FuzzDescription(f *testing.F) {
	f.Add("invoice_gen/SUB-1234", "web1", "cron", "job", 4711, int64(1<<48+7), true)
	f.Add("two\nlines", "web1", "cron", "job", 4711, int64(7), false)
	f.Add("*/ DROP TABLE x; /*", "'", "a=b,c='d'", "é\n%", -1, int64(-1), false)
	f.Add(strings.Repeat("ключ", 42), strings.Repeat("хост", 60), "\xff", strings.Repeat("x", 300), 1, int64(1), false)
	f.Fuzz(func(t *testing.T, key, host, user, command string, pid int, token int64, transaction bool) {
		d := Description{
			Keys: []string{key}, Scheme: "siphash24", Host: host, User: user, Command: command, PID: pid, Token: token,
			Lease: 15 * time.Second, LostGrace: 1500 * time.Nanosecond, Delay: 900 * time.Microsecond, Since: time.Unix(1<<30, 0).UTC(), Transaction: transaction,
		}
		comment := d.Comment()
		text := string(comment)
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is not only of ASCII, which a database in any encoding has", comment)
		}
		if strings.Contains(text, "*/") || strings.Contains(text, "/*") || strings.HasSuffix(text, "*") || strings.HasSuffix(text, "/") {
			t.Errorf("%q", comment)
		}
		if key == "" || strings.Contains(key, "\x00") || len(comment) > mostDescribed-len("beat='18446744073709551615',") {
			return // no key is like that
		}
		got, ok := Parse(statement(comment, 0))
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
			d.Request = beat
			got, ok := Parse(statement(comment, beat))
			if !ok || !reflect.DeepEqual(got, d) {
				t.Errorf("with a number, %+v arrives as %+v", d, got)
			}
		}
	})
}

// FuzzParse: what strangers write does no harm, and arrives in bounds.
func FuzzParse(f *testing.F) {
	f.Add("/*pglead key='%zz',pid='x',lease='1y',token='9999999999999999999'*/")
	f.Add("/*pglead slots='1000000000000',pid='-1',lease='-3s',token='-7',slot='-9223372036854775808',key='a%0Ab'*/")
	f.Add("/*pglead lease='2000000h',grace='2000000h',delay='2000000h'*/")
	f.Add("/*pglead since='0000-01-01T00:00:00%2B24:00'*/")
	f.Add("/*pglead key='" + strings.Repeat("a%0A", 500) + "',host='" + strings.Repeat("h", 500))
	f.Fuzz(func(t *testing.T, statement string) {
		d, ok := Parse(statement)
		if ok != strings.HasPrefix(statement, "/*pglead ") {
			t.Errorf("%q is %+v, %v", statement, d, ok)
		}
		if d.PID < 0 || d.Slot < 0 || d.Slot > MostSlots || d.Slots < 0 || d.Slots > MostSlots || d.Token < 0 || d.Lease < 0 || max(d.Lease, d.LostGrace, d.Delay) > mostLength ||
			len(d.Keys) > MostKeys || d.Slots > 0 && len(d.Keys) > 1 || len(d.Host)+len(d.User)+len(d.Command)+len(d.Scheme) > 4*mostNamed {
			t.Errorf("%q is %+v", statement, d)
		}
		if _, err := json.Marshal(d.Since); err != nil {
			t.Errorf("%q: %v", statement, err)
		}
	})
}

// TestDescriptionCutOff: if a comment is longer than what the server shows of a statement, keys are
// missing, and nothing else.
func TestDescriptionCutOff(t *testing.T) {
	const shown = 1024 - 1 // track_activity_query_size, with the byte that ends it
	longest := strings.Repeat("щ", 255)
	d := Description{
		Keys: []string{strings.Repeat("ключ", 42), "two"}, Scheme: "with-advisory-lock", Slots: 0, Host: strings.Repeat("host.", 50), PID: 4194304,
		User: longest, Command: longest, Lease: 100 * time.Hour, Transaction: true, Slot: 1000, Token: math.MaxInt64, Since: time.Unix(1<<30, 0).UTC(),
	}
	got, ok := Parse(statement(d.Comment(), 0)[:shown])
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
	if got, ok := Parse(statement(d.Comment(), 0)); !ok || !reflect.DeepEqual(got, d) {
		t.Errorf("%+v arrives as %+v", d, got)
	}
	d.Note = longest
	for _, name := range []string{"", longest} {
		d.Host, d.User, d.Command = name, name, name
		said := statement(d.Comment(), 0)
		got, _ = Parse(said[:min(len(said), shown)])
		if !strings.HasPrefix(longest, got.Note) || name == "" && len(got.Note) < 90 || !slices.Equal(got.Keys, d.Keys) {
			t.Errorf("%+v arrives as %+v", d, got)
		}
	}
	d.Note = "*/'/*,key='x'\n\x1b"
	if got, _ := Parse(statement(d.Comment(), 0)); got.Note != d.Note || !slices.Equal(got.Keys, d.Keys) {
		t.Errorf("%+v arrives as %+v", d, got)
	}
	// Of several keys those are there that the server has not cut.
	d = Description{PID: 1, Keys: []string{"first", strings.Repeat("ключ", 100)}}
	if got, _ := Parse(statement(d.Comment(), 0)[:shown]); len(got.Keys) != 1 || got.Keys[0] != "first" {
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
	if got, ok := Parse(comment); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	want.Keys, want.Slot, want.Slots = []string{"a/b"}, 2, 3
	if got, _ := Parse(strings.Replace(comment, "%0Ac", "", 1)); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if got, _ := Parse(comment[:30]); got.Command != "job" || got.Host != "" {
		t.Errorf("cut off, it is %+v", got)
	}
}

// TestName: what a session's name says is read back, as far as it fits, and a name that anybody
// chose shows no token and no end that it can't have.
func TestName(t *testing.T) {
	for _, tt := range []struct {
		name Name
		want string
	}{
		{Name{Key: "invoice_gen/SUB-1234", Host: "web1"}, "pglead:invoice_gen/SUB-1234@web1"},
		{Name{Key: "a'b\\c\nä", Host: "web1"}, "pglead:a?b?c??@web1"}, // a character is one question mark
		{Name{Key: strings.Repeat("k", 99), Host: "web1"}, "pglead:" + strings.Repeat("k", 51) + "@web1"},
		{Name{Key: "key", Host: strings.Repeat("h", 99)}, "pglead:key@" + strings.Repeat("h", 30)},
		{Name{Key: "#5- a", Host: "web1"}, "pglead:?5- a@web1"}, // otherwise it would be read as a token
	} {
		got := tt.name.String()
		read, ok := ParseName(got)
		if got != tt.want || len(got) > 63 || !ok || read.Key+"@"+read.Host != strings.TrimPrefix(got, "pglead:") {
			t.Errorf("%+v is %q, read as %+v, want %q", tt.name, got, read, tt.want)
		}
	}
	for text, want := range map[string]Name{
		"pglead:key@host":               {Key: "key", Host: "host"},
		"pglead:#281474976711380 a@b@c": {Key: "a@b", Host: "c", Token: 281474976711380},
		"pglead:#7- key@host":           {Key: "key", Host: "host", Token: 7, Ended: true},
		"pglead:#7 cut":                 {Token: 7},
		"pglead:":                       {}, "pglead:#": {}, "pglead:#7": {}, "pglead:#x key": {}, "pglead:#-7 key": {}, "pglead:#0- key": {},
		"pglead:#9223372036854775808 x": {},
	} {
		if got, ok := ParseName(text); !ok || got != want {
			t.Errorf("%q is %+v, %t, want %+v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "key@host", "psql pglead:#7 x@y", "pglead doctor"} {
		if got, ok := ParseName(text); ok || got != (Name{}) {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// TestShortHost: a host keeps both ends.
func TestShortHost(t *testing.T) {
	for host, want := range map[string]string{
		"web1": "web1", strings.Repeat("h", 25): strings.Repeat("h", 25),
		"invoice-worker-in-production-7d9f8b6c5d-abcde": "invoice-work*8b6c5d-abcde",
	} {
		if got := ShortHost(host); got != want || len(got) > 25 {
			t.Errorf("%q is %q, want %q", host, got, want)
		}
	}
}
