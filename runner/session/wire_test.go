package session

import (
	"testing"
	"testing/synctest"

	"github.com/jackc/pgx/v5/pgproto3"
)

// TestComment: the session's comment stands before each SELECT, with the number of the request, and
// before no other kind of statement.
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

// TestLastOfSeveral: two requests wait for their turn. The goodbye goes with the one that is the
// last, and with none before it.
func TestLastOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		ask := func(r Request) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := s.Ask(t.Context(), r)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		first := ask(Request{SQL: []string{"one"}})
		second := ask(Request{SQL: []string{"two"}})
		last := ask(Request{SQL: []string{"three"}, Last: true})
		for _, done := range []<-chan error{first, second, last} {
			s.answer(t, 0)
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if msg, err := s.server.Receive(); err != nil {
			t.Error(err)
		} else if _, ok := msg.(*pgproto3.Terminate); !ok {
			t.Errorf("the last message is a %T", msg)
		}
	})
}
