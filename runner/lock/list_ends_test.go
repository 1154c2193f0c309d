package lock_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestListHears: a session hears the ends of its list's items from another session, but neither
// its own, nor what is no end, nor those of another list.
func TestListHears(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), lock.Claim{})
	var heard []string // by the session's reader, before each answer
	open := func(number int64, hear func(item lockkey.ID, ok bool)) *lock.List {
		t.Helper()
		l, err := lock.OpenList(t.Context(), cfg, id(number), hear)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		return l
	}
	hearer := open(1, func(item lockkey.ID, ok bool) { heard = append(heard, fmt.Sprint(item, " ", ok)) })
	peer, another := openList(t, cfg), open(2, nil)
	run := func(l *lock.List, number int64, outcome ledger.Outcome) {
		t.Helper()
		a := takeItem(t, l, cfg, number, false)
		ended(settleItem(t, a), outcome)
		if releaseErr, _ := l.Exchange(a, nil); releaseErr != nil {
			t.Fatal(releaseErr)
		}
		a.Close()
	}
	for _, payload := range []string{"7 ok", "7 failed", "7 ok more", "", "7", "7 maybe", "ok 7", "8 ok"} {
		query(t, server, "SELECT pg_notify('pglead.1.each.1', '"+payload+"')")
	}
	run(another, -7, ledger.OK)
	run(peer, -7, ledger.OK)
	run(peer, -7, ledger.Failed)
	// The answer to the hearer's own request comes after all that was announced before.
	run(hearer, 9, ledger.OK)
	item := lockkey.SipHash24("").String() // by its key, and not by its lock
	if want := []string{"7 true", "7 false", "7 true", "8 true", item + " true", item + " false"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

// TestRejectedListen: an error of the server that keeps a list from listening names its kind, by
// which the list tries again, or exits with a status that says what is wrong.
func TestRejectedListen(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, newSlowRelay(t, server, func(sql string) string {
		if strings.HasPrefix(sql, "LISTEN") {
			return "SELECT 1/0"
		}
		return sql
	}), lock.Claim{})
	cfg.Wait = 0
	_, err := lock.OpenList(t.Context(), cfg, id(1), nil)
	if e := (*session.Error)(nil); !errors.As(err, &e) || err.Error() != "listen for what others on the list run: division by zero (22012)" {
		t.Errorf("%v", err)
	}
}

// TestListHearsAfterRecord: others on the list hear of an item's end once the ledger has it. If
// this process were killed in between, they would take an item as done that the ledger calls lost.
func TestListHearsAfterRecord(t *testing.T) {
	t.Parallel()
	server, dsn := remembering(t, nil)
	cfg := ledgered(leased(config(t, dsn, lock.Claim{}), longest))
	heard := make(chan bool, 1)
	hearer, err := lock.OpenList(t.Context(), cfg, id(1), func(_ lockkey.ID, ok bool) { heard <- ok })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hearer.Close)
	l := openList(t, cfg)
	a := takeItem(t, l, cfg, 7, false)
	ended(settleItem(t, a), ledger.OK)
	owner := plain(t, as(t, server, "boss"), "BEGIN; LOCK TABLE pglead.lock")
	released := make(chan error)
	go func() {
		releaseErr, _ := l.Exchange(a, nil)
		released <- releaseErr
	}()
	eventually(t, "the record waits for the table", func() bool {
		return query(t, server, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%finish_1%'")[0] == "1"
	})
	if len(heard) > 0 {
		t.Error("the end is heard before the ledger has it")
	}
	run(t, owner, "ROLLBACK")
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	if ok := <-heard; !ok || rows(t, server) != "nightly ok f t f" {
		t.Errorf("heard %t; the row: %s", ok, rows(t, server))
	}
}
