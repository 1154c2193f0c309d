package testserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pglead/pglead/runner/localpg"
)

// StartTLS starts a throwaway server that speaks TLS on a port of 127.0.0.1, and is
// its own authority. The certificate is for this host name.
func StartTLS(t *testing.T, host string) (server *localpg.Server, port, certificate string) {
	t.Helper()
	dir := Dir(t)
	certify(t, dir, host)
	port, certificate = Port(t), dir+"/server.crt"
	server = Start(t, map[string]string{"listen_addresses": "127.0.0.1", "port": port, "ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": dir + "/server.key"})
	return server, port, certificate
}

// Dir is a directory in which the server's account can read.
func Dir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgtls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := localpg.MakeDir(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// certify writes server.crt and server.key.
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
		check(localpg.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block)))
	}
}
