package session_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// authority is a certificate authority for one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true})
	return a
}

// issue writes NAME.crt and NAME.key.
func (a *authority) issue(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	check := func(err error) {
		if err != nil {
			a.t.Helper()
			a.t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	check(err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	check(err)
	write := func(file, kind string, der []byte) {
		check(localpg.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
	}
	write(name+".crt", "CERTIFICATE", der)
	write(name+".key", "EC PRIVATE KEY", keyDER)
	cert, err := x509.ParseCertificate(der)
	check(err)
	return cert, key
}

func TestLogin(t *testing.T) {
	dir := testserver.Dir(t)
	ca := newAuthority(t, dir)
	ca.issue("server", &x509.Certificate{DNSNames: []string{"db.example"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	ca.issue("carol", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	other := newAuthority(t, t.TempDir())

	port := testserver.Port(t)
	hba := filepath.Join(dir, "hba")
	if err := os.WriteFile(hba, []byte(`local   all all    trust
hostssl all carol all cert
hostssl all alice all scram-sha-256
`), 0o644); err != nil {
		t.Fatal(err)
	}
	server := start(t, map[string]string{
		"listen_addresses": "127.0.0.1", "port": port, "hba_file": hba, "ssl": "on", "ssl_ca_file": dir + "/ca.crt",
		"ssl_cert_file": dir + "/server.crt", "ssl_key_file": dir + "/server.key", "password_encryption": "scram-sha-256",
	})
	query(t, server, "CREATE ROLE alice LOGIN PASSWORD 'hunter2'; CREATE ROLE carol LOGIN")
	query(t, server, "CREATE DATABASE closed")
	query(t, server, "REVOKE CONNECT ON DATABASE closed FROM PUBLIC")

	plainPort := testserver.Port(t)
	start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": plainPort})

	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	stranger, err := net.Listen("tcp", "127.0.0.1:0") // speaks another protocol
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	_, strangerPort, _ := net.SplitHostPort(stranger.Addr().String())
	go func() {
		for {
			conn, err := stranger.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	_, mutePort, _ := net.SplitHostPort(mute.Addr().String())
	closedPort := testserver.Port(t)

	t.Setenv("HOME", t.TempDir())
	base := "host=db.example hostaddr=127.0.0.1 dbname=postgres sslrootcert=" + dir + "/ca.crt sslmode=verify-full port=" + port
	for _, tt := range []struct {
		name, dsn string
		kind      session.Kind // 0: the login works
		want      string
	}{
		{"scram, verify-full", base + " user=alice password=hunter2 channel_binding=require require_auth=scram-sha-256", 0, ""},
		{"client certificate", base + " user=carol sslcert=" + dir + "/carol.crt sslkey=" + dir + "/carol.key", 0, ""},
		{"no client certificate", base + " user=carol", session.Denied, "requires a valid client certificate"},
		{"wrong password", base + " user=alice password=hunter3", session.Denied, "password authentication failed"},
		{"no password", base + " user=alice", session.Denied, "password authentication failed"},
		{"no such role", base + " user=mallory password=hunter2", session.Denied, "no pg_hba.conf entry"},
		{"no such database", base + " user=alice password=hunter2 dbname=nosuch", session.Denied, `"nosuch" does not exist`},
		{"closed database", base + " user=alice password=hunter2 dbname=closed", session.Denied, "permission denied"},
		{"another name", strings.Replace(base, "db.example", "other.example", 1) + " user=alice password=hunter2", session.Unreachable, "certificate is not accepted"},
		{"another authority", base + " user=alice password=hunter2 sslrootcert=" + other.dir + "/ca.crt", session.Unreachable, "certificate is not accepted"},
		{"another authority, verify-ca", base + " user=alice password=hunter2 sslmode=verify-ca sslrootcert=" + other.dir + "/ca.crt", session.Unreachable, "certificate is not accepted: x509: "},
		{"unwelcome method", base + " user=alice password=hunter2 require_auth=md5", session.Denied, "require"},
		{"no TLS", "host=127.0.0.1 user=pglead dbname=postgres sslmode=require port=" + plainPort, session.Unreachable, "does not offer TLS"},
		{"closed port", "host=127.0.0.1 user=u dbname=d port=" + closedPort, session.Unreachable, "connection refused"},
		{"no socket", "host=" + dir + " user=u dbname=d", session.Unreachable, "no server socket"},
		{"mute", "host=127.0.0.1 user=u dbname=d sslmode=disable port=" + mutePort, session.Unreachable, "no answer within 1s"},
		{"stranger", "host=127.0.0.1 user=u dbname=d port=" + strangerPort, session.Unreachable, "d: what answers there is not PostgreSQL"},
		{"no such host", "host=nosuch.invalid user=u dbname=d", session.Unreachable, "nosuch.invalid"},
		{"one of two", fmt.Sprintf("host=127.0.0.1,db.example hostaddr=127.0.0.1,127.0.0.1 port=%s,%s user=alice password=hunter2 dbname=postgres sslmode=require", closedPort, port), 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(t, tt.dsn)
			cfg.ConnectTimeout = time.Second
			if tt.name != "mute" {
				cfg.ConnectTimeout = 30 * time.Second
			}
			s, err := session.Open(t.Context(), cfg)
			if err == nil {
				defer s.Close()
				if _, err := s.Query(t.Context(), session.PlainBeatQuery); err != nil {
					t.Error(err)
				}
			}
			if kindOf(err) != tt.kind || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Open: kind %d, %v; want kind %d, %q", kindOf(err), err, tt.kind, tt.want)
			}
			if err != nil && (strings.Contains(err.Error(), "hunter") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("the error tells the password, or is more than a line: %q", err)
			}
			if err != nil {
				t.Log(err)
			}
		})
	}
}

// TestReadableKeyIsRefused: a private key that others may read is refused, as by libpq, wherever
// its name comes from. The group may read one that root owns.
func TestReadableKeyIsRefused(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	own := filepath.Join(os.Getenv("HOME"), ".postgresql")
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	ca := newAuthority(t, own)
	ca.issue("postgresql", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	file := filepath.Join(own, "postgresql.key")
	named := "host=h sslcert=" + own + "/postgresql.crt sslkey=" + file
	group, chmod := session.BadDSN, "600" // what the group may read
	if os.Getuid() == 0 {
		if err := os.Chown(file, 0, 0); err != nil { // it is the servers' account's
			t.Fatal(err)
		}
		group, chmod = 0, "640"
	}
	for _, tt := range []struct {
		dsn  string
		mode os.FileMode
		kind session.Kind // 0: it is read
	}{
		{named, 0o600, 0},
		{named, 0o400, 0},
		{named, 0o644, session.BadDSN},
		{named, 0o660, session.BadDSN},
		{named, 0o640, group},
		{"host=h", 0o644, session.BadDSN},
		{"postgresql://h/d?sslmode=verify-full&sslrootcert=" + own + "/ca.crt", 0o644, session.BadDSN},
		{"host=h sslmode=disable", 0o644, 0},
		{"host=h sslcertmode=disable", 0o644, 0},
		{"host=/tmp", 0o644, 0},
	} {
		if err := os.Chmod(file, tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := session.ParseDSN(tt.dsn, "--dsn")
		var e *session.Error
		switch {
		case kindOf(err) != tt.kind || (err != nil) != (tt.kind != 0):
			t.Errorf("%s with mode %o: %v", tt.dsn, tt.mode, err)
		case errors.As(err, &e) && (e.Error() != fmt.Sprintf("--dsn: the private key file %q has group or world access", file) || e.Hint != "chmod "+chmod+" "+file):
			t.Errorf("%s with mode %o: %v; %s", tt.dsn, tt.mode, err, e.Hint)
		}
	}
	if os.Getuid() != 0 {
		return
	}
	if err := errors.Join(os.Chown(file, 1, 0), os.Chmod(file, 0o640)); err != nil {
		t.Fatal(err)
	}
	if _, err := session.ParseDSN(named, "--dsn"); kindOf(err) != session.BadDSN {
		t.Errorf("another's key that the group may read: %v", err)
	}
}

func TestTooManyClients(t *testing.T) {
	server := start(t, map[string]string{"max_connections": "4", "superuser_reserved_connections": "0", "max_wal_senders": "0"})
	dsn := server.DSN("postgres")
	for range 4 {
		open(t, dsn)
	}
	_, err := session.Open(t.Context(), config(t, dsn))
	if kindOf(err) != session.Unreachable || !strings.Contains(err.Error(), "too many clients") || !session.Passing(err) {
		t.Errorf("Open: %v", err)
	}
}

// TestRejectedByOneOfTwo: a server that rejects the login decides what kind of error it is, though
// another host may come back.
func TestRejectedByOneOfTwo(t *testing.T) {
	server := start(t, nil)
	dsn := fmt.Sprintf("host=%s,%s user=nosuch dbname=postgres", t.TempDir(), server.Socket)
	_, err := session.Open(t.Context(), config(t, dsn))
	var e *session.Error
	if !errors.As(err, &e) || e.Kind != session.Denied || !e.LoginRejected || session.Passing(err) ||
		!strings.Contains(err.Error(), ": no server socket there; "+server.Socket+`/.s.PGSQL.5432: role "nosuch" does not exist (28000)`) {
		t.Errorf("%+v: %v", e, err)
	}
}

// TestLoginHints: what to do about a rejected login is said in terms of what was given.
func TestLoginHints(t *testing.T) {
	server := start(t, map[string]string{"max_connections": "5", "max_locks_per_transaction": "10"})
	for _, tt := range []struct {
		name   string
		change func(cfg *session.Config)
		hint   string
	}{
		{"no user", func(cfg *session.Config) { cfg.Database.User = "" }, "this account has no name here: user= or PGUSER names the role"},
		{"no database", func(cfg *session.Config) { cfg.Database.Database = "app" }, "--dsn, PGLEAD_DSN, DATABASE_URL or PGDATABASE names the database; psql -l lists them"},
		{"a line's end", func(cfg *session.Config) { cfg.Database.Database = "app\n" }, `the connection string has blanks or a line's end in the name: "app\n"`},
		{"no lock space, from here on", func(cfg *session.Config) {
			fillLockTable(t, server)
			cfg.FirstTry = "pg_catalog.pg_try_advisory_lock(-1)"
		}, "max_locks_per_transaction"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config(t, server.DSN("postgres"))
			tt.change(&cfg)
			s, err := session.Open(t.Context(), cfg)
			if err == nil {
				s.Close()
			}
			var e *session.Error
			if !errors.As(err, &e) || !strings.Contains(e.Hint, tt.hint) {
				t.Errorf("Open: %v; want the hint %q: %+v", err, tt.hint, e)
			}
		})
	}
}

// TestFunctionRevoked: a role that may not call what the login calls is denied, whatever it asks
// for, and is not told that the server is too old.
func TestFunctionRevoked(t *testing.T) {
	server := start(t, nil)
	testserver.Query(t, server, "CREATE ROLE weak LOGIN")
	for _, function := range []string{"set_config(text, text, boolean)", "pg_is_in_recovery()", "pg_backend_pid()", "pg_postmaster_start_time()"} {
		testserver.Query(t, server, "REVOKE EXECUTE ON FUNCTION pg_catalog."+function+" FROM PUBLIC")
		name, _, _ := strings.Cut(function, "(")
		for what, change := range map[string]func(*session.Config){
			"no try":           func(*session.Config) {},
			"a try":            func(cfg *session.Config) { cfg.FirstTry = "pg_catalog.pg_try_advisory_lock(-1)" },
			"in a transaction": func(cfg *session.Config) { cfg.Transaction = true },
		} {
			cfg := config(t, server.DSN("postgres"))
			cfg.Database.User = "weak"
			change(&cfg)
			s, err := session.Open(t.Context(), cfg)
			if err == nil {
				s.Close()
			}
			var e *session.Error
			if !errors.As(err, &e) || e.Kind != session.Denied || !strings.HasSuffix(err.Error(), "permission denied for function "+name+" (42501)") ||
				e.Hint != "by default every role may use that: grant EXECUTE on the function, or SELECT on the view, to this role again" {
				t.Errorf("%s, %s: %v; %+v", name, what, err, e)
			}
		}
		testserver.Query(t, server, "GRANT EXECUTE ON FUNCTION pg_catalog."+function+" TO PUBLIC")
	}
}

// fillLockTable has a session that lasts as long as the test take all advisory locks that there is
// room for.
func fillLockTable(t *testing.T, server *localpg.Server) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "SELECT pg_advisory_lock(n) FROM generate_series(1, 1000000) AS n").ReadAll(); !session.HasCode(err, session.OutOfMemory) {
		t.Fatalf("the lock table is not full: %v", err)
	}
}
