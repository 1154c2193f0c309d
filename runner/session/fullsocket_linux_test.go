package session_test

import (
	"errors"
	"net"
	"strconv"
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

// TestNoAnswer: an attempt that times out says how far it came, which tells a firewall from a
// server that hangs.
func TestNoAnswer(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(at.(*unix.SockaddrInet4).Port)
	cfg := config(t, "host=127.0.0.1 user=u dbname=d port="+port)
	cfg.ConnectTimeout = time.Second
	says := func(hint string) {
		t.Helper()
		_, err := session.Open(t.Context(), cfg)
		var silent *session.Error
		if !errors.As(err, &silent) || silent.Error() != "connect to 127.0.0.1:"+port+"/d: no answer within 1s" ||
			silent.Hint != hint+" --connect-timeout sets how long each attempt may take" {
			t.Errorf("Open: %#v", err)
		}
	}
	says("it accepts connections and says nothing: does it hang, or is there a proxy without a server behind it?")
	for { // until the kernel has no room for one more that nobody accepts
		conn, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second)
		if err != nil {
			break
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	says("is a firewall in between?")
}
