package lock_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/lock"
)

// TestEndNamesNext: a holder's end is announced only if somebody listens, and names the first of
// them, whether or not that one listened already when the token was drawn.
func TestEndNamesNext(t *testing.T) {
	t.Parallel()
	cfg := config(t, start(t, nil).DSN("postgres"), exclusive(7))
	hearer := openOnly(t, cfg)
	var said []string // by the session's reader, before each answer
	hearer.OnNotify("pglead.1.7", func(_ uint32, payload string) { said = append(said, payload) })
	if _, err := hearer.Query(t.Context(), `LISTEN "pglead.1.7"`); err != nil {
		t.Fatal(err)
	}
	tenure := func(meanwhile func()) (words string) {
		t.Helper()
		h := acquire(t, cfg)
		meanwhile()
		release(t, h)
		if _, err := hearer.Query(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		words, said = strings.Join(said, "; "), nil
		return words
	}
	if words := tenure(func() {}); words != "" {
		t.Errorf("with no listener: %s", words)
	}
	s := open(t, cfg)
	to := fmt.Sprintf(" to=%d", s.BackendPID())
	listen := func() {
		if err := lock.NewBid(s, cfg, false).Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if words := tenure(listen); !strings.HasPrefix(words, "clean ") || !strings.HasSuffix(words, to) || strings.Contains(words, ";") {
		t.Errorf("with a listener that came during the tenure: %s, wanted clean and%s", words, to)
	}
	if words := tenure(func() {}); !strings.HasPrefix(words, "started ") || !strings.Contains(words, "; clean ") || !strings.HasSuffix(words, to) {
		t.Errorf("with a listener that was there: %s, wanted started, and clean and%s", words, to)
	}
}
