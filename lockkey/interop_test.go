package lockkey_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/localpg/testserver"
)

// randomKeys are keys of 1 to 300 characters from all planes of Unicode, each
// length of the first 40 many times over: hashes treat the last bytes apart.
func randomKeys(t *testing.T, n int, unwanted string) []string {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	keys := make([]string, 0, n)
	for i := range n {
		length := 1 + i%40
		if i%4 == 0 {
			length = 1 + random.IntN(300)
		}
		var key strings.Builder
		for length > 0 {
			r := rune(random.IntN(utf8.MaxRune + 1))
			switch random.IntN(3) {
			case 0:
				r = rune(random.IntN(0x80))
			case 1:
				r = rune(random.IntN(0x10000))
			}
			if r == 0 || !utf8.ValidRune(r) || strings.ContainsRune(unwanted, r) {
				continue
			}
			key.WriteRune(r)
			length--
		}
		keys = append(keys, key.String())
	}
	return keys
}

// lines runs a program and returns the lines of its output.
func lines(cmd *exec.Cmd, input string) ([]string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n"), nil
}

// missing ends a test that can't be run here, and fails it where all must be.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip("NOT TESTED:", what)
}

// TestGuava compares with Guava itself, slots included.
func TestGuava(t *testing.T) {
	const guava = "/usr/share/java/guava.jar"
	_, err := os.Stat(guava)
	java, err2 := exec.LookPath("java")
	if err := errors.Join(err, err2); err != nil {
		missing(t, "Guava ("+err.Error()+")")
	}
	siphash := scheme(t, "siphash24")
	keys := randomKeys(t, 8000, "")
	var input strings.Builder
	var want []lockkey.ID
	for i, key := range keys {
		id, err := siphash.ID(key)
		if i%4 == 1 {
			id, err = siphash.Slot(key, i)
			key += "\x00" + strconv.Itoa(i)
		}
		if err != nil {
			t.Fatalf("%q: %v", key, err)
		}
		want = append(want, id)
		fmt.Fprintln(&input, base64.StdEncoding.EncodeToString([]byte(key)))
	}
	got, err := lines(exec.CommandContext(t.Context(), java, "-cp", guava, "../testdata/interop/GuavaSipHash.java"), input.String())
	if err != nil {
		t.Fatal(err)
	}
	compare(t, keys, want, got)
}

func compare(t *testing.T, keys []string, ours []lockkey.ID, theirs []string) {
	t.Helper()
	if len(theirs) != len(ours) {
		t.Fatalf("%d answers to %d keys", len(theirs), len(ours))
	}
	for i, id := range ours {
		if id.String() != theirs[i] {
			t.Errorf("%q is %v, to the others %s", keys[i], id, theirs[i])
		}
	}
}

// TestGolangMigrate compares with golang-migrate itself.
func TestGolangMigrate(t *testing.T) {
	dir := filepath.Join("..", "testdata", "interop", "golang-migrate")
	download := exec.CommandContext(t.Context(), "go", "mod", "download")
	download.Dir = dir
	if _, err := lines(download, ""); err != nil {
		missing(t, "golang-migrate, which can't be downloaded: "+err.Error())
	}
	names := randomKeys(t, 6000, "/\t\r\n")
	migrate := scheme(t, "golang-migrate")
	var input strings.Builder
	var keys []string
	var want []lockkey.ID
	for i := 0; i+3 <= len(names); i += 3 {
		key := names[i : i+1+i/3%3]
		id, err := migrate.ID(strings.Join(key, "/"))
		if err != nil {
			t.Fatalf("%q: %v", key, err)
		}
		keys, want = append(keys, strings.Join(key, "/")), append(want, id)
		fmt.Fprintln(&input, strings.Join(key, "\t"))
	}
	run := exec.CommandContext(t.Context(), "go", "run", ".")
	run.Dir = dir
	got, err := lines(run, input.String())
	if err != nil {
		t.Fatal(err)
	}
	compare(t, keys, want, got)
}

// TestPostgreSQL compares with a server's own hash functions, and looks up
// every scheme's locks in pg_locks.
func TestPostgreSQL(t *testing.T) {
	s := testserver.Start(t, nil)
	keys := randomKeys(t, 6000, "")
	var literals []string
	for _, key := range keys {
		literals = append(literals, fmt.Sprintf(`'\\x%x'`, key))
	}
	for name, call := range map[string]string{"hashtext": "hashtext(key)::bigint", "hashtextextended": "hashtextextended(key, 0)"} {
		hash := scheme(t, name)
		var want []lockkey.ID
		for _, key := range keys {
			id, err := hash.ID(key)
			if err != nil {
				t.Fatalf("%q: %v", key, err)
			}
			want = append(want, id)
		}
		got, err := s.Query("postgres", "SELECT "+call+` FROM unnest(ARRAY[E`+strings.Join(literals, ",E")+
			`]::bytea[]) WITH ORDINALITY AS bytes(b, n), convert_from(b, 'UTF8') AS key ORDER BY n`)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, keys, want, got)
	}

	for _, v := range vectors {
		id, err := scheme(t, v.scheme).ID(v.key)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Query("postgres", fmt.Sprintf("SELECT pg_advisory_lock(%s); SELECT classid, objid, objsubid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()", id))
		want := fmt.Sprintf("%d %d %d", id.ClassID(), id.ObjID(), id.ObjSubID())
		if err != nil || strings.TrimSpace(strings.Join(got, " ")) != want {
			t.Errorf("pg_locks shows %s %.30q as %q (%v), want %s", v.scheme, v.key, got, err, want)
		}
	}
}
