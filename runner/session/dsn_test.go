package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// isolate takes the machine's own PostgreSQL settings out of the test's way.
func isolate(tb testing.TB) {
	tb.Helper()
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "PG") {
			tb.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
	tb.Setenv("HOME", tb.TempDir())
}

func TestParseDSNTarget(t *testing.T) {
	isolate(t)
	t.Setenv("PGUSER", "me")
	for _, tt := range []struct{ dsn, want string }{
		{"postgres://db.example/app", "db.example:5432/app"},
		{"postgresql://u:p%40@db.example:5433/app?sslmode=disable", "db.example:5433/app"},
		{"host=db.example port=5433 dbname=app", "db.example:5433/app"},
		{"host=db.example", "db.example:5432/me"},
		{"host=/run/pg dbname=app", "/run/pg:5432/app"},
		{"host=a,b,c dbname=app", "a:5432,b:5432,c:5432/app"},
		{"postgres://a:1,b:2/app?target_session_attrs=primary", "a:1,b:2/app"},
		{"host=::1 dbname=app", "[::1]:5432/app"},
		{"host=h hostaddr=127.0.0.9 dbname=app", "h:5432/app"},
		{"hostaddr=127.0.0.9 dbname=app", "127.0.0.9:5432/app"},
	} {
		cfg, err := ParseDSN(tt.dsn, "--dsn")
		if err != nil {
			t.Errorf("ParseDSN(%q): %v", tt.dsn, err)
		} else if got := Target(cfg); got != tt.want {
			t.Errorf("ParseDSN(%q) is %s, want %s", tt.dsn, got, tt.want)
		} else if len(cfg.RuntimeParams) != 1 {
			t.Errorf("ParseDSN(%q): start-up parameters %v", tt.dsn, cfg.RuntimeParams)
		}
	}
}

func TestParseDSNName(t *testing.T) {
	isolate(t)
	t.Setenv("PGHOST", "db.example")
	for _, name := range []string{"app", "my app", "it's", `back\slash`, "embedded"} {
		cfg, err := ParseDSN(name, "--dsn")
		if err != nil {
			t.Errorf("ParseDSN(%q): %v", name, err)
		} else if cfg.Database != name || cfg.Host != "db.example" {
			t.Errorf("ParseDSN(%q) is database %q on %q", name, cfg.Database, cfg.Host)
		}
	}
}

// TestParseDSNLeavesNothingForTheServer: pgconn hands parameters that it doesn't know to the
// server, which rejects the login or, with tcp_user_timeout, obeys.
func TestParseDSNLeavesNothingForTheServer(t *testing.T) {
	isolate(t)
	dsn := "host=h keepalives=1 keepalives_idle=5 keepalives_interval=5 keepalives_count=5 tcp_user_timeout=1000 " +
		"gssencmode=prefer load_balance_hosts=random application_name=x fallback_application_name=y client_encoding=auto " +
		"sslcompression=0 ssl_min_protocol_version=TLSv1.3 sslsni=1 channel_binding=prefer require_auth=scram-sha-256 " +
		"krbsrvname=postgres connect_timeout=3 options=-cgeqo=off"
	cfg, err := ParseDSN(dsn, "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"options": "-cgeqo=off", "client_encoding": "UTF8"}
	if len(cfg.RuntimeParams) != len(want) {
		t.Errorf("start-up parameters %v, want %v", cfg.RuntimeParams, want)
	}
	for name, value := range want {
		if cfg.RuntimeParams[name] != value {
			t.Errorf("start-up parameter %s = %q, want %q", name, cfg.RuntimeParams[name], value)
		}
	}
	if cfg.TLSConfig == nil || cfg.TLSConfig.MinVersion != 0x0304 {
		t.Error("ssl_min_protocol_version=TLSv1.3 had no effect")
	}
	if cfg, err = ParseDSN("host=h ssl_max_protocol_version=TLSv1.2", "--dsn"); err != nil || cfg.TLSConfig.MaxVersion != 0x0303 {
		t.Errorf("ssl_max_protocol_version=TLSv1.2 had no effect: %v", err)
	}
}

func TestParseDSNHostAddr(t *testing.T) {
	isolate(t)
	t.Setenv("PGHOSTADDR", "192.0.2.1,192.0.2.2")
	cfg, err := ParseDSN("host=a,b", "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"a": "192.0.2.1", "b": "192.0.2.2"} {
		addrs, err := cfg.LookupFunc(context.Background(), host)
		if err != nil || len(addrs) != 1 || addrs[0] != want {
			t.Errorf("%s resolves to %v, %v; want %s", host, addrs, err, want)
		}
	}
	// One that is left out is looked up.
	if cfg, err = ParseDSN("host=127.0.0.7,b hostaddr=,192.0.2.2", "--dsn"); err != nil {
		t.Fatal(err)
	}
	if addrs, err := cfg.LookupFunc(context.Background(), "127.0.0.7"); err != nil || !slices.Equal(addrs, []string{"127.0.0.7"}) {
		t.Errorf("it resolves to %v, %v", addrs, err)
	}
}

func TestParseDSNRefuses(t *testing.T) {
	isolate(t)
	for _, tt := range []struct{ dsn, want, hint string }{
		{"mysql://u:secret@h/db", "mysql://… is not PostgreSQL's", ""},
		{"jdbc:postgresql://h/db", "jdbc:postgresql://… is not PostgreSQL's", "postgresql://"},
		{"postgres://h/db?sslmod=require", `unknown connection parameter sslmod`, "psql"},
		{"host=h sslmod=require", `unknown connection parameter sslmod`, "psql"},
		{"host=h search_path=x", `unknown connection parameter search_path`, "options=-c"},
		{"postgres://u:sec/ret@h/db", "malformed", ""},
		{"host=h password='secret", "neither a URI", ""},
		{"host=h port=secret", "bad port", ""},
		{"host=h sslcrl=/x", "sslcrl is not supported", ""},
		{"host=h sslcrldir=/x", "sslcrldir is not supported", ""},
		{"host=h requirepeer=postgres", "requirepeer is not supported", ""},
		{"host=h gssencmode=require", "gssencmode=require is not supported", "sslmode"},
		{"host=h replication=database", "replication is not supported", ""},
		{"host=h sslmode=maybe", "sslmode", ""},
		{"host=h service=nosuch", "service", ""},
		{"host=a,b hostaddr=127.0.0.1", "2 hosts, but 1 hostaddr", ""},
		{"host=h hostaddr=192.0.2.1;password=secret", "hostaddr is not an IP address", ""},
		{"host=h ssl_min_protocol_version=TLSv1.2;password=secret", "the versions are", ""},
		{"host=h connect_timeout=3;password=secret", "malformed", ""},
		{"host=h sslrootcert=/x;password=secret", "malformed", ""},
	} {
		_, err := ParseDSN(tt.dsn, "--dsn")
		var e *Error
		if !errors.As(err, &e) || e.Kind != BadDSN {
			t.Errorf("ParseDSN(%q): %v, want a BadDSN", tt.dsn, err)
			continue
		}
		if !strings.Contains(err.Error(), tt.want) || !strings.Contains(e.Hint, tt.hint) {
			t.Errorf("ParseDSN(%q): %q, hint %q; want %q, %q", tt.dsn, err, e.Hint, tt.want, tt.hint)
		}
		if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "sec/ret") {
			t.Errorf("ParseDSN(%q) gives the password away: %q", tt.dsn, err)
		}
	}
	for variable, name := range map[string]string{"PGSSLCRL": "sslcrl", "PGSSLCRLDIR": "sslcrldir", "PGREQUIREPEER": "requirepeer"} {
		t.Setenv(variable, "x")
		if _, err := ParseDSN("host=h", "--dsn"); err == nil || !strings.Contains(err.Error(), name+" is not supported") {
			t.Errorf("%s: %v", variable, err)
		}
		_ = os.Unsetenv(variable)
	}
}

// TestParseDSNMangled: a text that was meant to be a URI or keywords, but has a typing error, is
// not taken for the name of a database or a host. Otherwise it would be sent to a server, and be in
// every message, with the password.
func TestParseDSNMangled(t *testing.T) {
	isolate(t)
	for dsn, want := range map[string]string{
		"postgres//u:secret@h/db":                     "neither",
		"u:secret@h/db":                               "neither",
		"u:secret@h":                                  "neither",
		"//u:secret@h/db":                             "neither",
		"postgresql:/u:secret@h/db":                   "neither",
		"postgresql:u:secret@h/db":                    "neither",
		"postgresql:/u:secret@h/db?sslmode=disable":   "neither",
		`"postgresql://u:secret@h/db"`:                "neither",
		`'postgresql://u:secret@h/db'`:                "neither",
		`"postgresql://u:secret@h/db?sslmode=prefer"`: "neither",
		" postgresql://u:secret@h/db":                 "neither",
		"postgresql ://u:secret@h/db":                 "neither",
		"u:secret://h/db":                             "neither",
		"secret\nx":                                   "neither",
		"scott/secret":                                "neither",
		"localhost:42000/app":                         "neither",
		"host:h;user:u;password:secret":               "neither",
		"host=h;user=u;password=secret":               "host looks like",
		"host=h; user=u password=secret":              "host looks like",
		"host=u:secret@h":                             "host looks like",
		"host=postgresql://u:secret@h/db":             "host looks like",
		"host=//u:secret@h/db":                        "host looks like",
		"host=h,u:secret@i":                           "host looks like",
		"host='h password=secret'":                    "host looks like",
		"host=h dbname=u:secret@h/db":                 "database looks like",
		"host=h dbname=postgresql://u:secret@h/db":    "database looks like",
		"host=h dbname=db;password=secret":            "database looks like",
		"host=h user=postgres//u:secret@h/db":         "user looks like",
		"postgresql://h/u:secret@i/db":                "database looks like",
		"postgresql://h;password=secret/db":           "host looks like",
		"postgresql://h/u:sec%72et@i/db":              "database looks like",
		"postgresql://h?dbname=u%3Asecret%40i":        "database looks like",
	} {
		hint := howToWrite
		if strings.HasPrefix(want, "database") {
			hint = howToEscape
		}
		_, err := ParseDSN(dsn, "--dsn")
		var e *Error
		if !errors.As(err, &e) || e.Kind != BadDSN || !strings.Contains(err.Error(), want) || e.Hint != hint {
			t.Errorf("ParseDSN(%q): %v, want %q and how to write it", dsn, err, want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("ParseDSN(%q) gives the password away: %q", dsn, err)
		}
	}
	for variable, part := range map[string]string{"PGHOST": "host", "PGDATABASE": "database", "PGUSER": "user"} {
		t.Setenv(variable, "postgresql://u:secret@h/db")
		if _, err := ParseDSN("port=5433", "--dsn"); err == nil || !strings.HasPrefix(err.Error(), variable+": the "+part+" looks like") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s with a URI: %v", variable, err)
		}
		t.Setenv(variable, "")
		os.Unsetenv(variable)
	}
	// Odd names are not mangled strings.
	for dsn, want := range map[string]string{
		"dbname='a@b:c/d;e=\"f\"' host=h":    `h:5432/a@b:c/d;e="f"`,
		"host=/run/postgresql@15 dbname=a":   "/run/postgresql@15:5432/a",
		"user=u@server host=h dbname=a":      "h:5432/a",
		"postgresql://h/a%3Ab":               "h:5432/a:b",
		"postgresql://h/a%3Ab%40c":           "h:5432/a:b@c",
		"postgresql://h/a%3Ab@c?user=u":      "h:5432/a:b@c",
		"postgresql://%2Ftmp/http%3A%2F%2Fx": "/tmp:5432/http://x",
		"postgresql://h/u%3Apw%40h%2Fdb":     "h:5432/u:pw@h/db",
		"postgresql://h/password%3Dx":        "h:5432/password=x",
		"host=fe80::1%eth0 dbname=a":         "[fe80::1%eth0]:5432/a",
	} {
		cfg, err := ParseDSN(dsn, "--dsn")
		if err != nil {
			t.Errorf("ParseDSN(%q): %v", dsn, err)
		} else if got := Target(cfg); got != want {
			t.Errorf("ParseDSN(%q) is %s, want %s", dsn, got, want)
		}
	}
}

func TestServiceAndPasswordFile(t *testing.T) {
	isolate(t)
	home := os.Getenv("HOME")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(".pg_service.conf", "[own]\nhost=own.example\nuser=u\ndbname=app\ntcp_user_timeout=5\n")
	write(".pgpass", "own.example:5432:app:u:pa\\:ss\n")
	t.Setenv("PGSERVICE", "own")
	cfg, err := ParseDSN("", "the PG* variables")
	if err != nil {
		t.Fatal(err)
	}
	if Target(cfg) != "own.example:5432/app" || cfg.Password != "pa:ss" || len(cfg.RuntimeParams) != 1 {
		t.Errorf("service own is %s, password %q, parameters %v", Target(cfg), cfg.Password, cfg.RuntimeParams)
	}

	sys := t.TempDir()
	t.Setenv("PGSYSCONFDIR", sys)
	if err := os.WriteFile(filepath.Join(sys, "pg_service.conf"), []byte("[everyones]\nhost=sys.example\ndbname=x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err = ParseDSN("service=everyones", "--dsn")
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Host != "sys.example" {
		t.Errorf("service everyones of PGSYSCONFDIR is on %q", cfg.Host)
	}
}

// TestPasswordFileOfOthers: a password file that others may read is ignored, with a warning,
// wherever it is named. There is no warning about a file that isn't needed, or is no plain file.
func TestPasswordFileOfOthers(t *testing.T) {
	isolate(t)
	home := os.Getenv("HOME")
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		file := filepath.Join(home, name)
		if err := errors.Join(os.WriteFile(file, []byte(text), mode), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	const line = "*:*:*:*:secret\n"
	own, open := write(".pgpass", line, 0o600), write("op en", line, 0o640)
	world := write("world", line, 0o604)
	write(".pg_service.conf", "[s]\nhost=h\npassfile="+open+"\n[t]\nhost=h\npassword=p\n", 0o644)
	type of struct{ dsn, variable, password, ignored string }
	for _, tt := range []of{
		{"host=h", "", "secret", ""},
		{"host=h", open, "", open},
		{"host=h", world, "", world},
		{"postgresql://u@h/db", open, "", open},
		{"postgresql://u:p@h/db", open, "p", ""},
		{"host=h password=p", open, "p", ""},
		{"service=t", open, "p", ""},
		{"host=h passfile='" + open + "'", "", "", open},
		{`host=h passfile=` + strings.ReplaceAll(open, " ", `\ `), "", "", open},
		{"host=h user='passfile=" + open + "'", own, "secret", ""},
		{"host=h passfile=" + own, open, "secret", ""},
		{"host=h passfile='" + open + "' passfile=" + own, "", "secret", ""},
		{"postgresql://h/db?sslmode=disable&passfile=" + strings.ReplaceAll(open, " ", "%20"), "", "", open},
		{"service=s", "", "", open},
		{"service=s passfile=" + own, "", "secret", ""},
		{"host=h", os.DevNull, "", ""},
		{"host=h", filepath.Join(home, "nosuch"), "", ""},
		{"hostaddr=127.0.0.1", open, "", open},
	} {
		t.Setenv("PGPASSFILE", tt.variable)
		var said []string
		cfg, err := ParseDSN(tt.dsn, "--dsn", func(message, hint string) { said = append(said, message+"; "+hint) })
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		var want []string
		if tt.ignored != "" {
			want = []string{fmt.Sprintf("the password file %q is ignored: it has group or world access; chmod 600 %s", tt.ignored, strings.Replace(tt.ignored, open, "'"+open+"'", 1))}
		}
		if cfg.Password != tt.password || !slices.Equal(said, want) {
			t.Errorf("%+v: password %q, said %q", tt, cfg.Password, said)
		}
	}
	t.Setenv("PGSERVICE", "s")
	t.Setenv("PGPASSFILE", "")
	warned := 0
	if cfg, err := ParseDSN("", "--dsn", func(string, string) { warned++ }); err != nil || cfg.Password != "" || warned != 1 {
		t.Errorf("by PGSERVICE: password %q, %d warnings, %v", cfg.Password, warned, err)
	}
	t.Setenv("PGSERVICE", "")
	if err := os.Chmod(own, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PGPASSFILE", "")
	cfg, err := ParseDSN("host=h", "--dsn")
	if err != nil || cfg.Password != "" {
		t.Errorf("~/.pgpass, mode 0644: password %q, %v", cfg.Password, err)
	}
}

// FuzzParseDSN looks for a connection string whose password shows in the error.
func FuzzParseDSN(f *testing.F) {
	f.Add("u", "h:1/db")
	f.Add("u", "h:x")
	f.Add("", "[h")
	f.Add("a/b", "h?x")
	f.Add("u?y", "h/db?sslmode=no")
	f.Add("u#", "h port=x 'y")
	isolate(f)
	const secret = "hunter2"
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, dsn := range []string{
			"postgres://" + before + ":" + secret + "@" + after,
			"user=" + before + " password=" + secret + " " + after,
			"user=" + before + " password='" + secret + after,
		} {
			if _, err := ParseDSN(dsn, "--dsn"); err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("ParseDSN(%q): %v", dsn, err)
			}
		}
		// Nor does it show if a part is left out, even if the string is accepted then.
		for _, dsn := range []string{before + ":" + secret + "@" + after, "host=h dbname=" + before + ":" + secret + "@" + after} {
			switch cfg, err := ParseDSN(dsn, "--dsn"); {
			case err != nil && strings.Contains(err.Error(), secret):
				t.Errorf("ParseDSN(%q): %v", dsn, err)
			case err == nil && strings.Contains(Target(cfg), secret):
				t.Errorf("ParseDSN(%q) is %s", dsn, Target(cfg))
			}
		}
	})
}
