package session

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglead/pglead/runner/leasetime"
)

// closedAhead is a connection that the server has closed, with a message that nobody has read yet:
// a write fails before the message is read.
type closedAhead struct {
	net.Conn
	words   io.Reader
	written chan struct{}
}

func (c closedAhead) Write([]byte) (int, error) {
	close(c.written)
	return 0, &net.OpError{Op: "write", Err: syscall.EPIPE}
}

func (c closedAhead) Read(b []byte) (int, error) {
	<-c.written
	return c.words.Read(b)
}

// TestReasonAfterBrokenPipe: the cause of a loss is what the server said, even if a request found
// the connection closed first, and even if the session, which has no heartbeat, was idle for longer
// than its lease before.
func TestReasonAfterBrokenPipe(t *testing.T) {
	fatal, err := (&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P01", Message: "terminating connection due to administrator command",
	}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]string{
		string(fatal): "the server ended the session: ",
		"":            "the connection broke: broken pipe",
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer there.Close()
			conn := closedAhead{here, bytes.NewReader([]byte(words)), make(chan struct{})}
			if words == "" { // the end does not show either
				conn.words = here
			}
			s := newSession(conn, pgproto3.NewFrontend(conn, conn), 1, Config{Lease: testLease}, virtual(time.Now(), new(time.Duration)))
			defer s.Close()
			time.Sleep(testLease)
			began := time.Now()
			_, err := s.Query(t.Context(), "SELECT 1")
			var lost *LostError
			if !errors.As(err, &lost) || !strings.Contains(lost.Cause.Error(), want) {
				t.Errorf("lost: %v, want %q", err, want)
			}
			if took := time.Since(began); took > leasetime.BeatEvery(testLease) {
				t.Errorf("that took %v", took)
			}
		})
	}
}

// TestLostSecond: what the user hears of a second session that the server has ended is no answer to a
// statement.
func TestLostSecond(t *testing.T) {
	ended := &pgconn.PgError{Code: "57P01", Message: "terminating connection"}
	err := new(Session).secondError(&LostError{Cause: ended})
	if AnsweredError(err) != nil || !Passing(err) || err.Error() != "the second session: "+ended.Error() {
		t.Errorf("the error is %v", err)
	}
}
