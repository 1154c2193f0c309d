package session_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/session"
)

// TestBusyHeartbeat: a heartbeat that has to ask something gets its turn on a connection that
// others keep busy.
func TestBusyHeartbeat(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	s := open(t, server.DSN("postgres"))
	var heard atomic.Int32
	s.SetHeartbeat(session.Heartbeat{Every: 500 * time.Millisecond, Request: session.Request{
		SQL: []string{session.PlainBeatQuery}, Then: func([]session.Rows) { heard.Add(1) },
	}})
	s.StartHeartbeat()
	began := time.Now()
	for time.Since(began) < 6*time.Second {
		if _, err := s.Query(t.Context(), "SELECT pg_sleep(0.02)"); err != nil {
			t.Fatal(err)
		}
	}
	if n := heard.Load(); n < 6 {
		t.Errorf("%d of 12 were asked", n)
	}
}
