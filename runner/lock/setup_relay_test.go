package lock_test

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
)

// relay stands between a holder and its server, and can go silent: from then on nothing passes in
// either direction, and the end of a connection doesn't either.
type relay struct {
	dsn    string
	mu     sync.Mutex // held while it is silent
	silent bool       // for the test's own goroutine
	held   []net.Conn
	kept   map[net.Conn]bool // ends of connections that stay open whatever becomes of the others
	over   bool
}

func newRelay(t *testing.T, server *localpg.Server) *relay {
	t.Helper()
	r := &relay{}
	var passing sync.WaitGroup
	l, dsn := inFront(t, server, &passing, func(near, far net.Conn) {
		r.mu.Lock()
		r.held = append(r.held, near, far)
		over := r.over
		r.mu.Unlock()
		if over {
			_, _ = near.Close(), far.Close()
			return
		}
		passing.Go(func() { r.pass(far, near) })
		passing.Go(func() { r.pass(near, far) })
	})
	r.dsn = dsn
	t.Cleanup(func() {
		_ = l.Close()
		if !r.silent {
			r.mu.Lock()
		}
		r.over = true
		for _, conn := range r.held {
			_ = conn.Close()
		}
		r.mu.Unlock()
		passing.Wait()
	})
	return r
}

// inFront listens in place of a server, at the DSN that it returns, until the listener is closed.
// It calls join with each connection that comes, and one to the server for it.
func inFront(t *testing.T, server *localpg.Server, passing *sync.WaitGroup, join func(near, far net.Conn)) (l net.Listener, dsn string) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	passing.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", filepath.Join(server.Socket, ".s.PGSQL.5432"))
			if err != nil {
				_ = near.Close()
				continue
			}
			join(near, far)
		}
	})
	return l, strings.Replace(server.DSN("postgres"), "host="+server.Socket, "host="+dir, 1)
}

func (r *relay) pass(to, from net.Conn) {
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		if n > 0 {
			_, _ = to.Write(buffer[:n])
		}
		if err != nil && !r.kept[to] {
			_ = to.Close()
		}
		r.mu.Unlock()
		if err != nil {
			if err != io.EOF { //nolint:errorlint // as it is
				_ = from.Close()
			}
			return
		}
	}
}

// strand ends the present connections for the clients alone: the server keeps their sessions.
func (r *relay) strand() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = map[net.Conn]bool{}
	for i := 0; i < len(r.held); i += 2 {
		r.kept[r.held[i+1]] = true
		_ = r.held[i].Close()
	}
}

// silence stops all that passes, until speak is called or the test is over.
func (r *relay) silence() {
	r.mu.Lock()
	r.silent = true
}

// speak ends the silence: what was held back passes.
func (r *relay) speak() {
	r.silent = false
	r.mu.Unlock()
}
