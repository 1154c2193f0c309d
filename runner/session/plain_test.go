package session_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// dials counts the connections that a configuration opens.
func dials(cfg session.Config) *[]net.Conn {
	dialed, dial := new([]net.Conn), cfg.Database.DialFunc
	cfg.Database.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		*dialed = append(*dialed, conn)
		return conn, err
	}
	return dialed
}

// TestPlainAttempts: with sslmode=prefer a server that has no TLS gets one connection, as from psql.
// One that is not used is closed.
func TestPlainAttempts(t *testing.T) {
	port := testserver.Port(t)
	start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port})
	for mode, works := range map[string]bool{"prefer": true, "disable": true, "require": false} {
		cfg := config(t, fmt.Sprintf("host=127.0.0.1 port=%s user=%s dbname=postgres sslmode=%s", port, localpg.Superuser, mode))
		dialed := dials(cfg)
		client, err := session.OpenClient(t.Context(), cfg)
		if (err == nil) != works || len(*dialed) != 1 {
			t.Errorf("sslmode=%s: %d connections: %v", mode, len(*dialed), err)
		}
		if works {
			if _, ok := client.Conn().(*net.TCPConn); !ok {
				t.Errorf("sslmode=%s: the connection is a %T", mode, client.Conn())
			}
			client.Close()
		}
		for _, conn := range *dialed {
			if _, err := conn.Write([]byte{0}); err == nil {
				t.Errorf("sslmode=%s: a connection is still open", mode)
			}
		}
		if works && openWith(t, cfg).Encrypted() {
			t.Errorf("sslmode=%s: the session counts as encrypted", mode)
		}
	}
}

// TestNoPlainAttempt: a server that has TLS, and refuses a login for a reason that has nothing to do
// with that, gets one login, over TLS. One that wants no TLS gets another without.
func TestNoPlainAttempt(t *testing.T) {
	server, port, _ := testserver.StartTLS(t, "db.example")
	query(t, server, "CREATE ROLE full LOGIN CONNECTION LIMIT 0; CREATE ROLE plain LOGIN")
	hba, err := os.ReadFile(server.Data + "/pg_hba.conf")
	if err == nil {
		err = os.WriteFile(server.Data+"/pg_hba.conf", append([]byte("hostssl all plain 127.0.0.1/32 reject\n"), hba...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	loaded := func() string { return query(t, server, "SELECT pg_conf_load_time()::text")[0] } // as the postmaster has it
	before := loaded()
	query(t, server, "SELECT pg_reload_conf()")
	eventually(t, "pg_hba.conf is not read again", func() bool { return loaded() != before })
	for role, connections := range map[string]int{"full": 1, localpg.Superuser: 1, "plain": 2} {
		cfg := config(t, "host=127.0.0.1 port="+port+" dbname=postgres user="+role)
		dialed := dials(cfg)
		client, err := session.OpenClient(t.Context(), cfg)
		var refused *session.Error
		if full := errors.As(err, &refused) && refused.Full; full != (role == "full") || !full && err != nil || len(*dialed) != connections {
			t.Errorf("%s: %d connections: %v", role, len(*dialed), err)
		}
		if err == nil {
			client.Close()
		}
	}

	cfg := config(t, "host=127.0.0.1 port="+port+" dbname=postgres user="+localpg.Superuser)
	cfg.Database.ValidateConnect = func(context.Context, *pgconn.PgConn) error { return errors.New("unfit") }
	dialed := dials(cfg)
	if _, err := session.OpenAnyClient(t.Context(), cfg); err == nil || strings.Count(err.Error(), "unfit") != 1 || len(*dialed) != 1 {
		t.Errorf("our own check: %d connections: %v", len(*dialed), err)
	}
}
