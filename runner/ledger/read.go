package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// ReadAccess finds out whether there is a ledger for this role. It also returns the role's name as
// SQL writes it. Its query names nothing in the schema pglead, since even to plan such a query
// could run functions there.
func ReadAccess(ctx context.Context, on session.Connection) (access Access, role string, err error) {
	rows, err := on.Query(ctx, "SELECT "+Use{Mode: Auto}.QuestionSQL(true)+", pg_catalog.quote_ident(current_user)")
	if err != nil {
		return Absent, "", err
	}
	row, err := rows.Only(2)
	if err != nil {
		return Absent, "", errAnswer
	}
	access, _ = ParseAccess(row[0])
	return access, row[1], nil
}

var errAnswer error = session.Errorf(session.Unsafe, "is the schema pglead another program's?", "the ledger does not answer as this version's does")

// heldSQL is an SQL expression about a row of pglead.lock that is true if somebody has the lock. A
// standby can't show the primary's locks, so there every lock counts as held.
const heldSQL = `((number, sub) IN (SELECT p.classid::bigint << 32 | p.objid::bigint, p.objsubid FROM pg_catalog.pg_locks AS p
	WHERE p.locktype = 'advisory' AND p.granted AND p.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))
	OR pg_catalog.pg_is_in_recovery())`

// begunSQL is an SQL condition on a row r of pglead.run: its command has begun. A list gives back a
// lock that it has taken ahead, and a run may be interrupted before its command. These are no runs.
const begunSQL = "(r.outcome <> 'stopped' OR r.status IS NOT NULL)"

// epoch is an SQL expression for microseconds since 1970, or the word infinity. That is also said
// of a time beyond Endless, whose microseconds may be more than a bigint has room for: an older
// ledger's pause_1 took any time.
func epoch(column string) string {
	return "CASE WHEN " + column + " > '9999-12-31 23:59:59+00' THEN 'infinity' WHEN pg_catalog.isfinite(" + column + ") THEN (extract(epoch FROM " + column + ") * 1000000)::bigint::text ELSE " + column + "::text END"
}

// length is an SQL expression for the length of an interval in microseconds. It is NULL for a
// caller's nonsense, which else would be everybody's error: no start waits for much longer than a
// day.
func length(column string) string {
	return "CASE WHEN " + column + " BETWEEN '0' AND '48:00' THEN (extract(epoch FROM " + column + ") * 1000000)::bigint END"
}

// among is an SQL condition on a row of the ledger's tables: it is of this key, under one of these
// numbers. All numbers of a key have the same sub. A key that is the number itself may have another
// spelling in the table of an older ledger.
func among(key string, ids []lockkey.ID) string {
	if ids[0].SpelledBy(key) {
		return numbered(ids[:1])
	}
	return fmt.Sprintf("key = pg_catalog.left(%s, %d) AND %s", quoteKey(key), mostKey, numbered(ids))
}

// numbered is an SQL condition on a row of the ledger's tables: it has one of these numbers.
func numbered(ids []lockkey.ID) string {
	numbers := joined(ids, ", ", func(id lockkey.ID) string { return strconv.FormatInt(id.Number, 10) })
	return fmt.Sprintf("sub = %d AND number IN (%s)", ids[0].ObjSubID(), numbers)
}

// column reads rows of one cell, the answer to a query that has maybe failed.
func column(rows session.Rows, failed error) (cells []string, err error) {
	cells = []string{}
	for _, row := range rows {
		r := reader{row: row}
		if cells = append(cells, r.text()); r.err != nil {
			return nil, r.err
		}
	}
	return cells, failed
}

// reader reads a row, cell by cell. It remembers the first error.
type reader struct {
	row []string
	err error
}

func (r *reader) text() string {
	if len(r.row) == 0 {
		r.err = errAnswer
		return ""
	}
	cell := r.row[0]
	r.row = r.row[1:]
	return strings.ToValidUTF8(cell, "\uFFFD")
}

func (r *reader) number() int64 {
	cell := r.text()
	if cell == "" {
		return 0
	}
	n, err := strconv.ParseInt(cell, 10, 64)
	r.err = errors.Join(r.err, err)
	return n
}

// whole reads a number that may be missing.
func (r *reader) whole() *int {
	if len(r.row) > 0 && r.row[0] == "" {
		r.text()
		return nil
	}
	n := int(r.number())
	return &n
}

func (r *reader) truth() bool { return r.text() == "t" }

// time reads an instant. It is zero for NULL and -infinity, and Endless for infinity.
func (r *reader) time() time.Time {
	if len(r.row) > 0 {
		switch r.row[0] {
		case "", "-infinity":
			r.text()
			return time.Time{}
		case "infinity":
			r.text()
			return Endless()
		}
	}
	return time.UnixMicro(r.number())
}

// lines reads the lines of a text. An empty text has none, and the list is then empty but not nil,
// so that it is [] in JSON.
func (r *reader) lines() []string {
	text := r.text()
	if text == "" {
		return []string{}
	}
	return strings.Split(text, "\n")
}

func (r *reader) length() time.Duration { return time.Duration(r.number()) * time.Microsecond }

func (r *reader) id() lockkey.ID {
	return lockkey.ID{Number: r.number(), Pair: r.number() == 2}
}

// entry is a list of SQL expressions for reader.entry. The table has the columns of a run.
func entry(of string) string {
	columns := []string{"system", "token", "host", "os_user", "pid", "command", "role", "", "", "outcome", "status", ""}
	for i, column := range columns {
		columns[i] = of + "." + column
	}
	columns[0] = "pg_catalog.left(" + columns[0] + ", 40)" // an older ledger took any text, of any length
	columns[7], columns[8], columns[11] = epoch(of+".started"), epoch(of+".ended"), length(of+".waited")
	return strings.Join(columns, ", ")
}

func (r *reader) entry(id lockkey.ID, key string) Entry {
	return Entry{
		ID: id, Key: key, System: r.text(), Token: r.number(), Host: r.text(), User: r.text(), PID: int(r.number()), Command: r.text(), Role: r.text(),
		Started: r.time(), Ended: r.time(), Outcome: Outcome(r.text()), Status: r.whole(), Waited: r.length(),
	}
}

// Endless is the end of a pause that lasts until somebody ends it.
func Endless() time.Time { return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }
