package session

import (
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestTLSFiles: without TLS the files for it are not looked at. Otherwise an error names the file
// that it is about.
func TestTLSFiles(t *testing.T) {
	isolate(t)
	dir := filepath.Join(os.Getenv("HOME"), ".postgresql")
	bad, other := filepath.Join(dir, "root.crt"), filepath.Join(dir, "other.crt")
	key := filepath.Join(dir, "key.pem")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY"}), 0o600), os.WriteFile(bad, []byte("nothing"), 0o600), os.WriteFile(other, []byte("nothing"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for dsn, want := range map[string]string{
		"host=h sslmode=disable":                                       "",
		"postgresql://h/db?sslmode=disable":                            "",
		"host=h sslmode=disable sslrootcert=" + other:                  "",
		"postgresql://h/db?sslmode=disable&sslrootcert=" + other:       "",
		"host=h sslmode=disable sslcert=" + other + " sslkey=" + other: "",
		"host=h":                                      `sslrootcert: no certificate in "` + bad + `"`,
		"host=h sslmode=allow":                        `sslrootcert: no certificate in "` + bad + `"`,
		"postgresql://h/db?sslmode=verify-full":       `sslrootcert: no certificate in "` + bad + `"`,
		"host=h sslmode=require sslrootcert=" + other: `sslrootcert: no certificate in "` + other + `"`,
		"host=h sslrootcert='' sslcert=" + other + " sslkey=" + other: `sslkey: no key in "` + other + `"`,
		"host=h sslrootcert='' sslcert=" + other + " sslkey=" + key:   `load sslcert "` + other + `" with sslkey "` + key + `": tls: failed to find any PEM data in certificate input`,
		"host=h sslrootcert=/nosuch":                                  `failed to configure TLS (unable to read CA file: open /nosuch: no such file or directory)`,
	} {
		cfg, err := ParseDSN(dsn, "--dsn")
		switch {
		case want != "":
			if err == nil || err.Error() != "--dsn: "+want {
				t.Errorf("%s: %v", dsn, err)
			}
		case err != nil:
			t.Errorf("%s: %v", dsn, err)
		case cfg.TLSConfig != nil || len(cfg.Fallbacks) > 0:
			t.Errorf("%s: with TLS", dsn)
		}
	}
	t.Setenv("PGSSLMODE", "disable")
	t.Setenv("PGSSLROOTCERT", other)
	if cfg, err := ParseDSN("host=h", "--dsn"); err != nil || cfg.TLSConfig != nil {
		t.Errorf("by the variables: %v", err)
	}
}

// TestServicePipe: a service file may be a pipe, as bash makes one for <(…), which can be read once.
func TestServicePipe(t *testing.T) {
	isolate(t)
	r, w, err := os.Pipe()
	if err == nil {
		_, err = w.WriteString("[s]\nhost=h\ndbname=app\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	defer r.Close()
	t.Setenv("PGSERVICEFILE", fmt.Sprintf("/dev/fd/%d", r.Fd()))
	if cfg, err := ParseDSN("service=s", "--dsn"); err != nil || cfg.Host != "h" || cfg.Database != "app" {
		t.Errorf("a pipe: %v", err)
	}
}

// TestServiceMistakes: a mistake in a service file is reported with the file and, if it can't be
// parsed, the line, without the line's text, in which there may be a password.
func TestServiceMistakes(t *testing.T) {
	isolate(t)
	own := filepath.Join(os.Getenv("HOME"), ".pg_service.conf")
	system := filepath.Join(t.TempDir(), "pg_service.conf")
	t.Setenv("PGSYSCONFDIR", filepath.Dir(system))
	for _, tt := range []struct{ dsn, file, text, want string }{
		{"service=s", own, "[t]\nhost=h\n\n# s\nhunter2\n[s]\nhost=h\n", `: syntax error in service file "` + own + `", line 5`},
		{"service=s servicefile=" + own, own, "host=hunter2\n[s]\nhost=h\n", `: syntax error in service file "` + own + `", line 1`},
		{"service=s", system, "[s]\nhunter2\n", `: syntax error in service file "` + system + `", line 2`},
		{"service=s", system, "[s]\nhost=h\n[t]\nhost=t\n[s]\nhost=g\n", `: the service "s" occurs 2 times in "` + system + `"`},
		{"service=s", own, "[s]\nusr=hunter2\n", `, service "s" of "` + own + `": unknown connection parameter usr`},
		{"service=s", system, "[s]\nport=hunter2\n", `, service "s" of "` + system + `": bad port: it is a number from 1 to 65535`},
		{"service=s", own, "[s]\nhost=h\nsslmode=off\n", `, service "s" of "` + own + `": bad sslmode: it is disable, allow, prefer, require, verify-ca or verify-full`},
	} {
		if err := os.WriteFile(tt.file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ParseDSN(tt.dsn, "--dsn"); err == nil || err.Error() != "--dsn"+tt.want {
			t.Errorf("%s with %q: %v", tt.dsn, tt.text, err)
		}
		if err := os.Remove(tt.file); err != nil {
			t.Fatal(err)
		}
	}
}
