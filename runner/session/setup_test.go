package session_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// index says where to look for a test, by the beginnings of the files' names.
const index = `
dsn, sources                           what a connection string may say, and what is refused
login, refusal, pooler, plain          the login: who is let in, and what an error then says
settings_linux                         what both ends of a connection are told
age                                    how old a promoted server seems, and one that has recovered
server, encoding                       a session on a real server: settings, notifications, its end
client                                 a connection that only asks
lease, heartbeat_busy                  the lease, in virtual time; a heartbeat beside other requests
loss_reason, fullsocket_linux          why a session is lost, and who takes no more, or says nothing
standbys                               synchronous_standby_names
nonsense_answers, wire                 what a server may answer; queries as they are sent
setup, leak                            for all tests
`

func TestIndex(t *testing.T) { testserver.Index(t, index, ".") }

var start, query, pooled, eventually = testserver.Start, testserver.Query, testserver.Pooled, testserver.Eventually

// config is a session's configuration with a lease that is short for a person
// and long for a slow machine.
func config(t *testing.T, dsn string) session.Config {
	t.Helper()
	database, err := session.ParseDSN(dsn, "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	return session.Config{Database: database, Lease: 6 * time.Second, ConnectTimeout: 10 * time.Second, ApplicationName: "pglead:test"}
}

func open(t *testing.T, dsn string) *session.Session {
	t.Helper()
	return openWith(t, config(t, dsn))
}

func openWith(t *testing.T, cfg session.Config) *session.Session {
	t.Helper()
	s, err := session.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// take tries an advisory lock by plain SQL.
func take(t *testing.T, s *session.Session, number int64) bool {
	t.Helper()
	row, err := s.Row(t.Context(), 1, fmt.Sprintf("SELECT pg_try_advisory_lock(%d)", number))
	if err != nil {
		t.Fatal(err)
	}
	return row[0] == "t"
}

func kindOf(err error) session.Kind {
	var e *session.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}

// await waits for the loss for as long as it may go unnoticed by the promise, and a good deal
// longer, since machines are slow.
func await(t *testing.T, s *session.Session) {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the loss went unnoticed")
	}
}
