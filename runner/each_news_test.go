package runner

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/lock"
	"github.com/pglead/pglead/runner/session"
)

// TestListenToList: a session hears the ends of its list's items from another session, but neither
// its own, nor what is no end, nor those of another list.
func TestListenToList(t *testing.T) {
	t.Parallel()
	locking := lockOn(t, testserver.Start(t, nil))
	open := func() *session.Session {
		s, err := session.Open(t.Context(), locking.Session)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	hearer, other := open(), open()
	list, item := lockkey.ID{Number: 1}, lockkey.ID{Number: -7}
	var heard []string // by the session's reader, before each answer
	if err := listenToList(t.Context(), hearer, list, func(item lockkey.ID, ok bool) {
		heard = append(heard, fmt.Sprint(item, " ", ok))
	}); err != nil {
		t.Fatal(err)
	}
	var said []lock.Said
	for _, payload := range []string{"7 ok", "7 failed", "7 ok more", "", "7", "7 maybe", "ok 7", "8 ok"} {
		said = append(said, lock.Said{Channel: "pglead.1.each.1", Payload: payload})
	}
	said = append(said, saidOfItem(lockkey.ID{Number: 2}, item, true),
		saidOfItem(list, item, true), saidOfItem(list, item, false))
	for _, what := range said {
		if err := lock.Tell(t.Context(), other, what); err != nil {
			t.Fatal(err)
		}
	}
	// The answer to the hearer's own request comes after all that was announced before.
	if err := lock.Tell(t.Context(), hearer, saidOfItem(list, lockkey.ID{Number: 9}, true)); err != nil {
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
	server := testserver.Start(t, nil)
	s, err := session.Open(t.Context(), lockOn(t, server).Session)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Query(t.Context(), "BEGIN", "SELECT 1/0"); err == nil {
		t.Fatal("the transaction goes on")
	}
	err = listenToList(t.Context(), s, id(1), nil)
	if e := (*session.Error)(nil); !errors.As(err, &e) || !strings.HasPrefix(err.Error(), "listen for what others on the list run: current transaction is aborted") {
		t.Errorf("%v", err)
	}
}
