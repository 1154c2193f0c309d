package lock_test

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
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
	l := openList(t, cfg)
	item := func(number int64) *lock.Attempt {
		of := cfg
		of.Claim = exclusive(number)
		a := l.Attempt(of, false)
		if !a.Fits() {
			t.Fatalf("the try for %d does not join", number)
		}
		return a
	}
	do := func(last, next []*lock.Attempt) {
		t.Helper()
		if releaseErr, tryErr := l.ExchangeAll(last, next); releaseErr != nil || tryErr != nil {
			t.Fatal(releaseErr, tryErr)
		}
	}
	settle := func(a *lock.Attempt) *lock.Held {
		t.Helper()
		h := ended(settleItem(t, a), ledger.OK)
		if !a.Fits() {
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

	one, two, three := item(11), item(12), item(13)
	do(nil, []*lock.Attempt{one, two, three})
	if !one.Granted() || !two.Granted() || three.Granted() {
		t.Fatalf("granted: %t, %t, %t", one.Granted(), two.Granted(), three.Granted())
	}
	first, second := settle(one), settle(two)
	if first.Token <= 0 || first.Token != second.Token {
		t.Errorf("tokens %d and %d of one commit", first.Token, second.Token)
	}

	four := item(14)
	do([]*lock.Attempt{one}, []*lock.Attempt{four})
	if third := settle(four); third.Token <= first.Token {
		t.Errorf("token %d after %d", third.Token, first.Token)
	}
	rows, err := hearer.Query(t.Context(), "SELECT pg_try_advisory_lock(11), pg_try_advisory_lock(12), pg_try_advisory_lock(14)")
	if err != nil || fmt.Sprint(rows) != "[[t f f]]" {
		t.Errorf("after the exchange another session has 11, 12, 14: %v, %v", rows, err)
	}
	want := []string{
		fmt.Sprintf("pglead.1.11: started %d 6000 0", first.Token), fmt.Sprintf("pglead.1.12: started %d 6000 0", first.Token),
		"pglead.1.each.1: " + lockkey.SipHash24("").String() + " ok", fmt.Sprintf("pglead.1.11: clean %d 6000 0", first.Token),
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
	if err, _ := l.Exchange(one, nil); kindOf(err) != session.Unsafe {
		t.Errorf("released twice: %v", err)
	}
	do([]*lock.Attempt{two}, nil)
	if got := run(t, foreign, "SELECT pg_try_advisory_lock(12)::text"); got[0] != "true" {
		t.Error("12 is not free")
	}
}

// TestExchangeIsJoined: what workers ask for while an exchange can't be sent yet goes in one, and
// each of them hears how it ended.
func TestExchangeIsJoined(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), lock.Claim{})
	l := openList(t, cfg)
	last := takeItem(t, l, cfg, 10, false)
	first := ended(settleItem(t, last), ledger.OK)
	send := l.HoldExchanges()
	var workers sync.WaitGroup
	var attempts []*lock.Attempt
	for n := range 3 {
		cfg.Claim = exclusive(int64(11 + n))
		before, next := last, l.Attempt(cfg, false)
		if n > 0 {
			before = nil
		}
		attempts = append(attempts, next)
		workers.Go(func() {
			if releaseErr, tryErr := l.Exchange(before, next); releaseErr != nil || tryErr != nil {
				t.Error(releaseErr, tryErr)
			}
		})
	}
	eventually(t, "all have joined", func() bool { return l.Joined() == len(attempts) })
	send()
	workers.Wait()
	var tokens []int64
	for _, a := range attempts {
		tokens = append(tokens, settleItem(t, a).Token)
	}
	if tokens[0] <= first.Token || tokens[1] != tokens[0] || tokens[2] != tokens[0] {
		t.Errorf("the tokens of one exchange: %v, after %d", tokens, first.Token)
	}
	if free := run(t, plain(t, server.DSN("postgres")), "SELECT pg_try_advisory_lock(10)::text"); free[0] != "true" {
		t.Error("the last item's lock is not free")
	}
}

// TestMayJoinExchange: an item whose start takes more than a grant, or whose command has failed, can't be
// part of an exchange.
func TestMayJoinExchange(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), exclusive(11))
	l := openList(t, cfg)
	for name, change := range map[string]func(*lock.Config){
		"shared":      func(c *lock.Config) { c.Claim.Shared = true },
		"several":     func(c *lock.Config) { c.Claim = exclusive(11, 12) },
		"transaction": func(c *lock.Config) { c.Session.Transaction = true },
		"quorum":      func(c *lock.Config) { c.Session.Quorum = true },
	} {
		of := cfg
		change(&of)
		if l.Attempt(of, false).Fits() {
			t.Errorf("%s: it joins", name)
		}
	}
	if l.Attempt(cfg, true).Fits() {
		t.Error("an item to which the list comes back joins")
	}
	heard := l.Attempt(cfg, false)
	if err := heard.KeepListening(t.Context()); err != nil {
		t.Fatal(err)
	}
	if heard.Fits() {
		t.Error("an item that was listened for joins")
	}
	failed := takeItem(t, l, cfg, 12, false)
	if ended(settleItem(t, failed), ledger.Failed); failed.Fits() {
		t.Error("an item that has failed joins")
	}
}

// TestRecordedBeforeFree: an item's end is recorded in the ledger before its lock is free.
func TestRecordedBeforeFree(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(config(t, dsn, exclusive(11)))
	l := openList(t, cfg)
	a := takeItem(t, l, cfg, 11, false)
	ended(settleItem(t, a), ledger.OK)
	if err, _ := l.Exchange(a, nil); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, server); got != "nightly ok f t f" {
		t.Errorf("the row: %s", got)
	}
}

// endedItem is an item of lock 11, which an exchange has tried for, and whose command has ended.
func endedItem(t *testing.T, l *lock.List, cfg lock.Config) *lock.Attempt {
	t.Helper()
	a := takeItem(t, l, cfg, 11, false)
	ended(settleItem(t, a), ledger.OK)
	return a
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
			cfg.Log = slog.New(c)
			l := openList(t, cfg)
			last := endedItem(t, l, cfg)
			query(t, server, "REVOKE EXECUTE ON FUNCTION "+of.function+" FROM PUBLIC")
			cfg.Claim = lock.Claim{IDs: []lockkey.ID{of.next}}
			next := l.Attempt(cfg, false)
			releaseErr, tryErr := l.Exchange(last, next)
			wants, _, _ := strings.Cut(of.function, "(")
			if releaseErr != nil || kindOf(tryErr) != session.Denied || !strings.Contains(fmt.Sprint(tryErr), "permission denied for function "+wants) {
				t.Errorf("released: %v; tried: %v", releaseErr, tryErr)
			}
			if next.Granted() {
				t.Error("the item is granted")
			}
			held := run(t, plain(t, server.DSN("postgres")), fmt.Sprintf("SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND pid = %d", l.Session.BackendPID()))
			if held[0] != "0" {
				t.Errorf("the session holds %s locks", held[0])
			}
			if said := c.said(); len(said) != 0 {
				t.Errorf("said %v", said)
			}
		})
	}
}
