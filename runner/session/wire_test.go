package session

import (
	"errors"
	"strings"
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

// TestLostDuringLast: if the connection ends before the last request is answered, that is a loss,
// which shows at once.
func TestLostDuringLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		go func() {
			_, _ = s.server.Receive()
			_ = s.there.Close()
		}()
		_, err := s.Ask(t.Context(), Request{SQL: []string{"SELECT 1"}, Last: true})
		if !errors.As(err, new(*LostError)) || !strings.Contains(err.Error(), "the server closed the connection") || s.Err() == nil || s.at() != 0 {
			t.Errorf("after %v: %v; lost: %v", s.at(), err, s.Err())
		}
	})
}

// TestLostStaysLost: a goodbye does not make a loss a planned end.
func TestLostStaysLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		go func() {
			for err := error(nil); err == nil; {
				_, err = s.server.Receive()
			}
		}()
		s.fail(ErrSilent)
		for range 20 { // the loss and the free connection are chosen from at random
			_, err := s.Ask(t.Context(), Request{SQL: []string{"SELECT 1"}, Last: true})
			if !errors.As(err, new(*LostError)) || !errors.Is(s.Err(), ErrSilent) {
				t.Fatalf("%v; lost: %v", err, s.Err())
			}
			select {
			case <-s.onWire: // which no answer has emptied
			default:
			}
		}
	})
}

// TestUnaskedDoesNoHarm: rows and notices that answer no request do no harm.
func TestUnaskedDoesNoHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		s.send(&pgproto3.DataRow{Values: [][]byte{[]byte("unasked")}})
		s.send(&pgproto3.NoticeResponse{Severity: "WARNING", Routine: "SyncRepWaitForLSN"})
		s.send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
		synctest.Wait()
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			if rows, err := s.Query(t.Context(), "SELECT 1"); err != nil || !rows.Is("1") || s.EndError() != nil {
				t.Errorf("%v, %v", rows, err)
			}
		}()
		s.answer(t, 0)
		<-asked
	})
}

// TestOnceIsNotAskedAgain: what precedes the first heartbeat is not asked again.
func TestOnceIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSilent(t)
		s.SetHeartbeat(Heartbeat{Request: Request{SQL: []string{"SELECT 'beat'"}}, Once: []string{"SELECT 'once'"}})
		s.StartHeartbeat()
		for _, want := range []string{"SELECT 'once'", "SELECT 'beat'", "SELECT 'beat'"} {
			msg, err := s.server.Receive()
			if asked, ok := msg.(*pgproto3.Query); err != nil || !ok || asked.String != want {
				t.Fatalf("it asks %#v, %v, want %s", msg, err, want)
			}
			s.send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		}
	})
}

// TestAllSilent: neither session's server answers, and the cause says so.
func TestAllSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, second := newSilent(t), newSilent(t)
		s.dependOn(second.Session)
		s.StartHeartbeat()
		for _, c := range []*silent{s, second} {
			go func() {
				for _, err := c.server.Receive(); err == nil; _, err = c.server.Receive() {
				}
			}()
		}
		<-s.Done()
		if err := s.Err(); !errors.Is(err, ErrSilent) || !strings.Contains(err.Error(), ErrSilent.Error()) {
			t.Errorf("lost: %v", err)
		}
	})
}
