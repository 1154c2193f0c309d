package lock_test

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglead/pglead/runner/localpg"
)

// newSlowRelay is the DSN of a relay between sessions and their server. It passes on what change
// returns for each query. While change does not return, the server gets nothing, as if the network
// or the server's processor were busy.
func newSlowRelay(t *testing.T, server *localpg.Server, change func(sql string) string) (dsn string) {
	t.Helper()
	var passing sync.WaitGroup
	l, dsn := inFront(t, server, &passing, func(near, far net.Conn) {
		passing.Go(func() { passSession(far, near, change) })
	})
	t.Cleanup(func() {
		_ = l.Close()
		passing.Wait()
	})
	return dsn
}

func passSession(far, near net.Conn, change func(sql string) string) {
	defer near.Close()
	answers := make(chan struct{})
	go func() {
		defer close(answers)
		_, _ = io.Copy(near, far)
	}()
	passQueries(far, near, change)
	_ = far.Close()
	<-answers
}

// passQueries passes the messages of a session on to its server. The first has no type.
func passQueries(far io.Writer, near io.Reader, change func(sql string) string) {
	for typed := 0; ; typed = 1 {
		head := make([]byte, typed+4)
		if _, err := io.ReadFull(near, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[typed:])-4)
		if _, err := io.ReadFull(near, body); err != nil {
			return
		}
		message := slices.Concat(head, body)
		var query pgproto3.Query
		if typed == 1 && head[0] == 'Q' && query.Decode(body) == nil {
			query.String = change(query.String)
			message, _ = query.Encode(nil)
		}
		if _, err := far.Write(message); err != nil {
			return
		}
	}
}
