package lock_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestListenToList: a session hears the ends of its list's items from another session, but neither
// its own, nor what is no end, nor those of another list.
func TestListenToList(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	cfg := config(t, server.DSN("postgres"), lock.Claim{})
	hearer, other := openOnly(t, cfg), openOnly(t, cfg)
	list, item := id(1), id(-7)
	var heard []string // by the session's reader, before each answer
	if err := lock.ListenToList(t.Context(), hearer, list, func(item lockkey.ID, ok bool) {
		heard = append(heard, fmt.Sprint(item, " ", ok))
	}); err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{"7 ok", "7 failed", "7 ok more", "", "7", "7 maybe", "ok 7", "8 ok"} {
		if _, err := other.Query(t.Context(), "SELECT pg_notify('pglead.1.each.1', '"+payload+"')"); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []lock.ItemEnd{{id(2), item, true}, {list, item, true}, {list, item, false}} {
		if err := end.Tell(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	// The answer to the hearer's own request comes after all that was announced before.
	if err := (lock.ItemEnd{List: list, Item: id(9), OK: true}).Tell(t.Context(), hearer); err != nil {
		t.Fatal(err)
	}
	if want := []string{"7 true", "7 false", "7 true", "8 true", "-7 true", "-7 false"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

// TestRejectedListen: an error of the server that keeps a list from listening names its kind, by
// which the list tries again, or exits with a status that says what is wrong.
func TestRejectedListen(t *testing.T) {
	t.Parallel()
	s := openOnly(t, config(t, start(t, nil).DSN("postgres"), lock.Claim{}))
	if _, err := s.Query(t.Context(), "BEGIN", "SELECT 1/0"); err == nil {
		t.Fatal("the transaction goes on")
	}
	err := lock.ListenToList(t.Context(), s, id(1), nil)
	if e := (*session.Error)(nil); !errors.As(err, &e) || !strings.HasPrefix(err.Error(), "listen for what others on the list run: current transaction is aborted") {
		t.Errorf("%v", err)
	}
}
