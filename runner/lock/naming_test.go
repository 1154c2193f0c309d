package lock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/advisory"
	"github.com/pglead/pglead/runner/crowd"
)

// TestNamedEnd: the end of a brief tenure names the next in line only if somebody listened when the
// token was drawn. Whoever listens hears it in any case.
func TestNamedEnd(t *testing.T) {
	t.Parallel()
	cfg := config(t, start(t, nil).DSN("postgres"), exclusive(7))
	hearer := openOnly(t, cfg)
	var said []string // by the session's reader, before each answer
	hearer.OnNotify("pglead.1.7", func(_ uint32, payload string) { said = append(said, payload) })
	if _, err := hearer.Query(t.Context(), `LISTEN "pglead.1.7"`); err != nil {
		t.Fatal(err)
	}
	tenure := func(meanwhile func()) (words string, brief bool) {
		t.Helper()
		began := time.Now()
		h := acquire(t, cfg)
		meanwhile()
		release(t, h)
		brief = time.Since(began) < crowd.FirstBeat
		if _, err := hearer.Query(t.Context(), "SELECT 1"); err != nil {
			t.Fatal(err)
		}
		words, said = strings.Join(said, "; "), nil
		return words, brief
	}
	if words, _ := tenure(func() {}); words != "" {
		t.Errorf("with no listener: %s", words)
	}
	listen := func() {
		if err := bid(t, cfg).Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if words, brief := tenure(listen); !strings.HasPrefix(words, "clean ") || brief && strings.Contains(words, "to=") {
		t.Errorf("with a listener that came during the tenure: %s", words)
	}
	if words, _ := tenure(func() {}); !strings.HasPrefix(words, "started ") || !strings.Contains(words, "; clean ") || !strings.Contains(words, " to=") {
		t.Errorf("with a listener that was there: %s", words)
	}
}

// TestNamedEndAfterCall: a holder that calls dormant waiters names the one that then listens, however
// brief its tenure was, since others may be before it.
func TestNamedEndAfterCall(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(7))
	plain(t, server.DSN("postgres"), fmt.Sprintf("SELECT pg_advisory_lock(%d)", advisory.TicketOf(id(7), 1, false).Number))
	said := make(chan string, 64)
	hearer := openOnly(t, cfg)
	hearer.OnNotify("pglead.1.7", func(_ uint32, payload string) { said <- payload })
	if _, err := hearer.Query(t.Context(), `LISTEN "pglead.1.7"`); err != nil {
		t.Fatal(err)
	}
	h := acquire(t, cfg)
	if err := bid(t, cfg).Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	release(t, h)
	if _, err := hearer.Query(t.Context(), "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	if words := <-said; !strings.HasPrefix(words, "clean ") || !strings.Contains(words, " to=") {
		t.Errorf("it says %s", words)
	}
}
