package cmd

import (
	"testing"
	"time"

	"github.com/pglead/pglead/runner/lock"
)

func TestDuration(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
		out  string
	}{
		{"0", 0, "0"}, {"10", 10 * time.Second, "10s"}, {"0.5", 500 * time.Millisecond, "500ms"},
		{"5m", 5 * time.Minute, "5m"}, {"1h", time.Hour, "1h"}, {"1h30m", 90 * time.Minute, "1h30m"},
		{"1d", 24 * time.Hour, "24h"}, {"2d3h", 51 * time.Hour, "51h"}, {"1d1m30s", 24*time.Hour + 90*time.Second, "24h1m30s"},
		{"90s", 90 * time.Second, "1m30s"}, {"forever", lock.Forever, "forever"},
		{"3650d", longest, "87600h"}, {"315360000", longest, "87600h"}, {"3649d24h", longest, "87600h"},
	} {
		d := duration{mayBeForever: true}
		if err := d.Set(tt.in); err != nil || d.value != tt.want || d.String() != tt.out {
			t.Errorf("%q is %v (%q), %v; want %v (%q)", tt.in, d.value, d.String(), err, tt.want, tt.out)
		}
	}
	for _, in := range []string{"", "-1", "-5s", "soon", "NaN", "inf", "1e300", "5 m", "10x", "1m30", "d", "-1d", "1d-1h", "1h1d", "1d1d", "106752d", "99999d23h999999h"} {
		d := duration{mayBeForever: true}
		if err := d.Set(in); err == nil {
			t.Errorf("%q is taken for %v", in, d.value)
		}
	}
	for _, in := range []string{"3651d", "3650d1s", "3650d1ns", "100000d", "87601h", "2562047h47m16.854775807s", "3650d2562047h", "315360001", "9223372036.8547", "inf", "1e300"} {
		d := duration{mayBeForever: true}
		if err := d.Set(in); err == nil || err.Error() != `"`+in+`" is too long: at most 3650d` {
			t.Errorf("%q is %v, %v", in, d.value, err)
		}
	}
	if err := (&duration{}).Set("forever"); err == nil {
		t.Error("forever is taken where there must be an end")
	}
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"10", "5m", "1e3", "-1", "0x10p3", "9223372036.854775807"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := parseDuration(s); err == nil && (d < 0 || d > longest) {
			t.Errorf("%q is %v", s, d)
		}
	})
}
