package session

import "testing"

// TestComment: a session says of itself what it has to before each SELECT, with
// the number of the request, and before no other statement.
func TestComment(t *testing.T) {
	for sql, want := range map[string]string{
		"SELECT 1": "/*pglead beat='7',pid='1'*/ SELECT 1",
		"LISTEN x": "LISTEN x",
	} {
		if got := commented("pid='1'", 7, sql); got != want {
			t.Errorf("%q is sent as %q, want %q", sql, got, want)
		}
	}
	if got := commented("", 7, "SELECT 1"); got != "SELECT 1" {
		t.Errorf("without a comment: %q", got)
	}
}
