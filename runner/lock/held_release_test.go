package lock_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
	hold := func(meanwhile func()) (words string) {
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
	if words := hold(func() {}); words != "" {
		t.Errorf("with no listener: %s", words)
	}
	s := open(t, cfg)
	to := fmt.Sprintf(" to=%d", s.BackendPID())
	listen := func() {
		if err := lock.NewBid(s, cfg, false).Listen(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if words := hold(listen); !strings.HasPrefix(words, "clean ") || !strings.HasSuffix(words, to) || strings.Contains(words, ";") {
		t.Errorf("with a listener that came during the run: %s, wanted clean and%s", words, to)
	}
	if words := hold(func() {}); !strings.HasPrefix(words, "started ") || !strings.Contains(words, "; clean ") || !strings.HasSuffix(words, to) {
		t.Errorf("with a listener that was there: %s, wanted started, and clean and%s", words, to)
	}
}

// TestLostInRelease: a session is cut off while it releases its lock, after its name has shown the
// end. The new session, which says that the command is dead, ends it: otherwise the waiters would
// find the lock held, and would not know that the command is dead when it comes free.
func TestLostInRelease(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cut := make(chan struct{})
	first := acquire(t, config(t, server.DSN("postgres"), exclusive(7)))
	// With this lease neither the server nor a waiter ends the session.
	second := contend(t, leased(config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.HasSuffix(sql, " SELECT pg_catalog.pg_advisory_unlock(7)::int") {
			<-cut
		}
		return sql
	}), exclusive(7)), time.Hour))
	t.Cleanup(func() { close(cut) })
	inLine(t, server, id(7), 1)
	release(t, first)
	h := second.held(t)
	third := contend(t, config(t, server.DSN("postgres"), exclusive(7)))
	inLine(t, server, id(7), 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := h.Release(ctx); err == nil {
		t.Fatal("the lock is released")
	}
	lock.ReportLost(t.Context(), h)
	third.held(t)
	if said := third.said(); slices.Contains(said, "delayed") {
		t.Errorf("the third said %v", said)
	}
}
