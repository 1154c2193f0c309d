package session_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestSettings: what both ends of a connection are told, with the shortest lease. A setting of 0 would
// be the system's own default, which may be hours.
func TestSettings(t *testing.T) {
	port := testserver.Port(t)
	start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	cfg := config(t, fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres", port, localpg.Superuser))
	cfg.Lease = 3 * time.Second
	s := openWith(t, cfg)
	for _, setting := range []string{
		"idle_session_timeout 3s", "tcp_keepalives_idle 3", "tcp_keepalives_interval 1", "tcp_keepalives_count 4", "tcp_user_timeout 3000",
		"client_connection_check_interval 600ms", "client_min_messages warning", "DateStyle ISO, MDY", "application_name pglead:test",
	} {
		name, want, _ := strings.Cut(setting, " ")
		if row, err := s.Row(t.Context(), 1, "SELECT current_setting('"+name+"')"); err != nil || strings.TrimSuffix(row[0], " ") != want {
			t.Errorf("%s is %q, %v, want %s", name, row, err, want)
		}
	}
	raw, err := s.Socket().(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		for _, option := range []struct{ level, number, want int }{
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 3000},
		} {
			if got, err := unix.GetsockoptInt(int(fd), option.level, option.number); err != nil || got != option.want {
				t.Errorf("option %d of level %d is %d, %v, want %d", option.number, option.level, got, err, option.want)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}
