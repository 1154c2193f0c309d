package lock

import "testing"

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
