package lock_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/lock/evidence"
	"github.com/pglead/pglead/runner/session"
)

// TestExchange: in one round trip ends are announced before their locks are free, locks that are
// free are taken, listed, and have a token, and locks that are held elsewhere are not taken.
func TestExchange(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), lock.Claim{})
	s := openOnly(t, cfg)
	bid := func(number int64) *lock.Bid {
		of := cfg
		of.Claim = exclusive(number)
		of.OfList = true
		b := lock.NewBid(s, of, false)
		if !b.MayExchange() {
			t.Fatalf("the bid for %d does not join", number)
		}
		return b
	}
	do := func(x lock.Exchange) {
		t.Helper()
		exchange(t, x, s)
	}
	settle := func(b *lock.Bid) *lock.Held {
		t.Helper()
		h, err := b.Settle(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !h.MayExchange() {
			t.Fatal("what is held does not join")
		}
		return h
	}
	foreign := plain(t, server.DSN("postgres"), "SELECT pg_advisory_lock(13)")
	hearer := openOnly(t, cfg)
	var said []string // by the session's reader, before each answer
	for _, channel := range []string{"pglead.1.each.1", "pglead.1.11", "pglead.1.12", "pglead.1.13"} {
		hearer.OnNotify(channel, func(_ uint32, payload string) { said = append(said, channel+": "+payload) })
		if _, err := hearer.Query(t.Context(), `LISTEN "`+channel+`"`); err != nil {
			t.Fatal(err)
		}
	}

	one, two, three := bid(11), bid(12), bid(13)
	do(lock.Exchange{Next: []*lock.Bid{one, two, three}})
	if !one.Complete() || !two.Complete() || three.Complete() {
		t.Fatalf("granted: %t, %t, %t", one.Complete(), two.Complete(), three.Complete())
	}
	first, second := settle(one), settle(two)
	if first.Token <= 0 || first.Token != second.Token {
		t.Errorf("tokens %d and %d of one commit", first.Token, second.Token)
	}

	four := bid(14)
	do(lock.Exchange{Ended: []*lock.Held{first}, Ends: []lock.ItemEnd{{List: id(1), Item: id(11), OK: true}}, Next: []*lock.Bid{four}})
	if third := settle(four); third.Token <= first.Token {
		t.Errorf("token %d after %d", third.Token, first.Token)
	}
	rows, err := hearer.Query(t.Context(), "SELECT pg_try_advisory_lock(11), pg_try_advisory_lock(12), pg_try_advisory_lock(14)")
	if err != nil || fmt.Sprint(rows) != "[[t f f]]" {
		t.Errorf("after the exchange another session has 11, 12, 14: %v, %v", rows, err)
	}
	want := []string{
		fmt.Sprintf("pglead.1.11: started %d 6000 0", first.Token), fmt.Sprintf("pglead.1.12: started %d 6000 0", first.Token),
		"pglead.1.each.1: 11 ok", fmt.Sprintf("pglead.1.11: clean %d 6000 0", first.Token),
	}
	slices.Sort(said[:min(2, len(said))]) // of one statement's rows
	var lsn string
	said[len(said)-1], lsn, _ = strings.Cut(said[len(said)-1], " lsn=")
	if evidence.ParseLSN(lsn) == 0 {
		t.Errorf("the clean end does not show where the log is: %q", lsn)
	}
	if !slices.Equal(said, want) {
		t.Errorf("heard %q, want %q", said, want)
	}

	// What the session does not hold can't be released.
	if err, _ := (lock.Exchange{Ended: []*lock.Held{first}}).Do(t.Context(), s); kindOf(err) != session.Unsafe {
		t.Errorf("released twice: %v", err)
	}
	do(lock.Exchange{Ended: []*lock.Held{second}})
	if got := run(t, foreign, "SELECT pg_try_advisory_lock(12)::text"); got[0] != "true" {
		t.Error("12 is not free")
	}
}

// TestJoins: a bid whose start takes more than a grant can't be part of an exchange.
func TestJoins(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(11))
	cfg.OfList = true
	s := openOnly(t, cfg)
	for name, change := range map[string]func(*lock.Config){
		"alone":       func(c *lock.Config) { c.OfList = false },
		"shared":      func(c *lock.Config) { c.Claim.Shared = true },
		"several":     func(c *lock.Config) { c.Claim = exclusive(11, 12) },
		"transaction": func(c *lock.Config) { c.Session.Transaction = true },
		"quorum":      func(c *lock.Config) { c.Session.Quorum = true },
	} {
		of := cfg
		change(&of)
		if lock.NewBid(s, of, false).MayExchange() {
			t.Errorf("%s: it joins", name)
		}
	}
	if lock.NewBid(s, cfg, true).MayExchange() {
		t.Error("a bid that returns joins")
	}
	heard := lock.NewBid(s, cfg, false)
	if err := heard.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	if heard.MayExchange() {
		t.Error("a bid that has listened joins")
	}
}

// TestUnheardEnd: a lock is released although the server rejects the announcement of the end. A
// server does so when its queue of notifications is full; since that takes 8 GB, here a missing
// right is the reason.
func TestUnheardEnd(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	dsn := as(t, server, "cron")
	free := func() bool {
		return run(t, plain(t, server.DSN("postgres")), "SELECT pg_try_advisory_xact_lock(11)::text")[0] == "true"
	}
	forbid := func(t *testing.T) {
		t.Helper()
		query(t, server, "REVOKE EXECUTE ON FUNCTION pg_notify FROM PUBLIC")
		t.Cleanup(func() { query(t, server, "GRANT EXECUTE ON FUNCTION pg_notify TO PUBLIC") })
	}
	t.Run("run", func(t *testing.T) {
		c := contend(t, config(t, dsn, exclusive(11)))
		h := c.held(t)
		forbid(t)
		if err := h.Release(t.Context()); err != nil || !free() {
			t.Errorf("%v; the lock is free: %t", err, free())
		}
		if said := c.said(); !slices.Equal(said, []string{"unheard"}) {
			t.Errorf("said %v", said)
		}
	})
	t.Run("list", func(t *testing.T) {
		cfg, c := config(t, dsn, exclusive(11)), &contender{}
		cfg.OfList, cfg.Log = true, slog.New(c)
		s := openOnly(t, cfg)
		h := settledInExchange(t, cfg, s)
		forbid(t)
		if exchange(t, lock.Exchange{Ended: []*lock.Held{h}}, s); !free() {
			t.Error("the lock is not free")
		}
		if said := c.said(); !slices.Equal(said, []string{"unheard"}) {
			t.Errorf("said %v", said)
		}
	})
}

func exchange(t *testing.T, x lock.Exchange, s *session.Session) {
	t.Helper()
	if released, started := x.Do(t.Context(), s); released != nil || started != nil {
		t.Fatal(released, started)
	}
}

// settledInExchange is a lock that an exchange has tried for, ready for its command.
func settledInExchange(t *testing.T, cfg lock.Config, s *session.Session) *lock.Held {
	t.Helper()
	b := lock.NewBid(s, cfg, false)
	exchange(t, lock.Exchange{Next: []*lock.Bid{b}}, s)
	h, err := b.Settle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestRejectedExchange: if the server rejects the token of an exchange, or its tries, the session
// holds none of the locks afterwards. Other commands may use it for hours. Nothing else is said. Here
// a missing right is the reason.
func TestRejectedExchange(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		next     lockkey.ID
		function string
	}{
		"token": {lockkey.ID{Number: 12}, "pg_current_xact_id()"},
		"try":   {lockkey.ID{Number: 12, Pair: true}, "pg_try_advisory_lock(integer, integer)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, nil)
			cfg, c := config(t, as(t, server, "cron"), exclusive(11)), &contender{}
			cfg.OfList, cfg.Log = true, slog.New(c)
			s := openOnly(t, cfg)
			h := settledInExchange(t, cfg, s)
			query(t, server, "REVOKE EXECUTE ON FUNCTION "+of.function+" FROM PUBLIC")
			cfg.Claim = lock.Claim{IDs: []lockkey.ID{of.next}}
			next := lock.NewBid(s, cfg, false)
			released, started := lock.Exchange{Ended: []*lock.Held{h}, Next: []*lock.Bid{next}}.Do(t.Context(), s)
			wants, _, _ := strings.Cut(of.function, "(")
			if released != nil || kindOf(started) != session.Denied || !strings.Contains(fmt.Sprint(started), "permission denied for function "+wants) {
				t.Errorf("released: %v; started: %v", released, started)
			}
			if next.Complete() {
				t.Error("the bid is complete")
			}
			held := run(t, plain(t, server.DSN("postgres")), fmt.Sprintf("SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND pid = %d", s.BackendPID()))
			if held[0] != "0" {
				t.Errorf("the session holds %s locks", held[0])
			}
			if said := c.said(); len(said) != 0 {
				t.Errorf("said %v", said)
			}
		})
	}
}
