package session_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pglead/pglead/runner/session"
)

// TestEncoding sends characters that the database lacks. Each query of a request is carried out
// once, the answers are in order, and a transaction is still one transaction. Characters that the
// database has stay as they are.
func TestEncoding(t *testing.T) {
	server := start(t, nil)
	query(t, server, "CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
	s := open(t, server.DSN("latin"))
	if _, err := s.Query(t.Context(), "CREATE SEQUENCE public.drawn", "SET search_path = public"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ sql, want []string }{
		"several":       {[]string{"SELECT 'é'", "SELECT 'für 日本日'", "SELECT '語', nextval('drawn')"}, []string{"é", "für <U+65E5><U+672C><U+65E5>", "<U+8A9E>", "1"}},
		"a transaction": {[]string{"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT '🙂', 't'; COMMIT"}, []string{"<U+1F642>", "t"}},
		"known by now":  {[]string{"SELECT '日'", "SELECT '€'"}, []string{"<U+65E5>", "<U+20AC>"}},
	} {
		rows, err := s.Query(t.Context(), test.sql...)
		if got := slices.Concat(rows...); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, test.want)
		}
	}
	row, err := s.Row(t.Context(), 2, "SELECT '中', 'é'")
	if err != nil || !slices.Equal(row, []string{"<U+4E2D>", "é"}) {
		t.Errorf("a row: %q, %v", row, err)
	}
	for _, sql := range [][]string{{"SELECT '文 ' + no_such_column"}, {"SELECT '字'", "SELECT no_such_column", "SELECT 1"}, {"SELECT no_such_column", "SELECT '化'"}} {
		if _, err := s.Query(t.Context(), sql...); err == nil || !strings.Contains(err.Error(), "no_such_column") {
			t.Errorf("%q, which has another error, too: %v", sql, err)
		}
	}
	client, err := session.OpenClient(t.Context(), config(t, server.DSN("latin")))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	rows, err := client.Query(t.Context(), "SELECT 'für 日本'", "SELECT '€'")
	if got := slices.Concat(rows...); err != nil || !slices.Equal(got, []string{"für <U+65E5><U+672C>", "<U+20AC>"}) {
		t.Errorf("a client: %q, %v", got, err)
	}
}
