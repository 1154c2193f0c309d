package session_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// TestPlainAgain: with sslmode=prefer a server that has no TLS gets one connection, as from psql. One
// that is not used is closed.
func TestPlainAgain(t *testing.T) {
	port := testserver.Port(t)
	start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	for mode, works := range map[string]bool{"prefer": true, "disable": true, "require": false} {
		cfg := config(t, fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres sslmode=%s", port, localpg.Superuser, mode))
		var dialed []net.Conn
		dial := cfg.Database.DialFunc
		cfg.Database.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			dialed = append(dialed, conn)
			return conn, err
		}
		client, err := session.OpenClient(t.Context(), cfg)
		if (err == nil) != works || len(dialed) != 1 {
			t.Errorf("sslmode=%s: %d connections: %v", mode, len(dialed), err)
		}
		if works {
			if _, ok := client.Conn().(*net.TCPConn); !ok {
				t.Errorf("sslmode=%s: the connection is a %T", mode, client.Conn())
			}
			client.Close()
		}
		for _, conn := range dialed {
			if _, err := conn.Write([]byte{0}); err == nil {
				t.Errorf("sslmode=%s: a connection is open still", mode)
			}
		}
		if works && openWith(t, cfg).Encrypted() {
			t.Errorf("sslmode=%s: the session counts as encrypted", mode)
		}
	}
}
