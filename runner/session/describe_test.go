package session

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// FuzzDescription: what a session says of itself arrives, and whatever it says
// is one comment, which nothing in it ends.
func FuzzDescription(f *testing.F) {
	f.Add("invoice_gen/SUB-1234", "web1", "cron", "job", 4711, int64(1<<48+7), true)
	f.Add("*/ DROP TABLE x; /*", "'", "a=b,c='d'", "é\n%", -1, int64(-1), false)
	f.Fuzz(func(t *testing.T, key, host, user, command string, pid int, token int64, transaction bool) {
		d := Description{
			Keys: []string{key}, Scheme: "siphash24", Host: host, User: user, Command: command, PID: pid, Token: token,
			Lease: 15 * time.Second, Since: time.Unix(1<<30, 0).UTC(), Transaction: transaction,
		}
		comment := d.comment()
		if inner := strings.TrimSuffix(strings.TrimPrefix(comment, "/*"), "*/ "); strings.Contains(inner, "*/") || strings.Contains(inner, "/*") {
			t.Errorf("%q", comment)
		}
		if key == "" || strings.Contains(key, "\n") {
			return // no key is like that
		}
		got, ok := parseDescription(comment + "SELECT 1")
		if !ok || !reflect.DeepEqual(got, d) {
			t.Errorf("%+v arrives as %+v", d, got)
		}
	})
}

// FuzzParseDescription: what strangers write does no harm.
func FuzzParseDescription(f *testing.F) {
	f.Add("/*pglead key='%zz',pid='x',lease='1y',token='9999999999999999999'*/")
	f.Fuzz(func(t *testing.T, statement string) {
		if d, ok := parseDescription(statement); ok != strings.HasPrefix(statement, "/*pglead ") {
			t.Errorf("%q is %+v, %v", statement, d, ok)
		}
	})
}
