package lock

import (
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/describe"
)

// TestAskerName: what the name of an asking session says is read back, as far as the server doesn't
// cut it off.
func TestAskerName(t *testing.T) {
	for _, tt := range []struct{ by, to string }{{"cron on web1", ""}, {"cron on web1", "web2"}, {"a by b", "web2"}, {"ann", "by"}} {
		if by, to := parseAsker(askerName(tt.by, tt.to)); by != tt.by || to != tt.to {
			t.Errorf("%q asks for %q: read as %q and %q", tt.by, tt.to, by, to)
		}
	}
	if by, to := parseAsker("psql"); by != "" || to != "" {
		t.Errorf("another program is %q and %q", by, to)
	}
	host := strings.Repeat("h", 63)
	name := askerName("cron on web1", host)
	if by, to := parseAsker(name); len(name) > 63 || by != "cron on web1" || to != describe.ShortHost(host) {
		t.Errorf("with a long host the name has %d bytes, and is read as %q and %q", len(name), by, to)
	}
}
