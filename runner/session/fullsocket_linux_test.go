package session_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/session"
)

// TestFullSocket: a server that a thousand nodes reach at once on its socket has no room in
// that socket's queue. Linux says so at once, with an error that counts as a time-out.
func TestFullSocket(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/.s.PGSQL.5432"
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	cfg := config(t, "host="+dir+" user=u dbname=d")
	cfg.ConnectTimeout = time.Minute
	_, err = session.Open(t.Context(), cfg)
	var refused *session.Error
	if !errors.As(err, &refused) || !refused.Full || refused.Hint != "" || !strings.Contains(refused.Error(), "too many connections wait at the server's socket") {
		t.Errorf("Open: %v", err)
	}
}
