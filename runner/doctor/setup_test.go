package doctor_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pglead/pglead/runner/localpg"
	"github.com/pglead/pglead/runner/localpg/testserver"
	"github.com/pglead/pglead/runner/session"
)

// TestMain: what was opened for a look is closed after it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start, query = testserver.Start, testserver.Query

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

// eventually waits until the condition holds; a test that waits in vain fails.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for began := time.Now(); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("never: %s", what)
		}
	}
}

func kindOf(err error) session.Kind {
	var e *session.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}

// certify writes server.crt and server.key, of a server that is its own authority.
func certify(t *testing.T, dir, host string) {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	check(err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	check(err)
	for name, block := range map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: cert}, "server.key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		path := filepath.Join(dir, name)
		check(os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
		if account, err := localpg.Account(); err == nil && account != nil {
			check(os.Chown(path, int(account.Uid), int(account.Gid)))
		}
	}
}
