package ledger

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglead/pglead/lockkey"
)

// Run is what a run says of itself.
type Run struct {
	Host, User, Command string
	PID                 int
	Lease, LostGrace    time.Duration
	Tick                *Tick
}

// Lock is one of a run's locks.
type Lock struct {
	lockkey.ID
	Key string
}

// keySQL is an SQL text: the key as the ledger has it. There a number has a single spelling, since
// pauses go by the text of the key.
func (l Lock) keySQL() string {
	if l.SpelledBy(l.Key) {
		return quoteKey(l.String())
	}
	return quoteKey(l.Key)
}

// Proof is what a run knows of earlier runs.
type Proof struct {
	// Backend is the session that has the locks, if another session asks.
	Backend uint32
	// OthersDead says that no command is alive that the ledger does not know.
	OthersDead bool
	// Closes has a token for each lock: no command of that token or of an earlier one is
	// alive. Or it has OthersDeadHere.
	Closes []int64
	// Heard are the tokens with an announced start and no announced end.
	Heard []int64
	// Waited is how long the locks were held before the start.
	Waited time.Duration
}

// OthersDeadHere says of one lock what OthersDead says of all. It closes no run that the ledger
// knows. An older ledger ignores it.
const OthersDeadHere = -1

// StartSQL is an SQL expression that starts a run of one lock if nothing is in its way. Otherwise
// its value is NULL, and StartWithProofSQL tells the reason. token and system are SQL expressions,
// too.
func (r Run) StartSQL(l Lock, token, system string) string {
	return fmt.Sprintf("pglead.start_1('%d', '%d', %s, %s, %s, %s, NULL, %s)",
		l.Number, l.ObjSubID(), l.keySQL(), token, system, r.selfSQL(), r.tickSQL())
}

// StartWithProofSQL is an SQL expression that starts a run, or tells what is in its way.
// ParseAnswer reads its value.
func (r Run) StartWithProofSQL(locks []Lock, shared bool, token int64, system string, p Proof) string {
	decimal := func(n int64) string { return strconv.FormatInt(n, 10) }
	backend := "NULL"
	if p.Backend != 0 {
		backend = decimal(int64(p.Backend))
	}
	return fmt.Sprintf("pglead.start_rest_1('{%s}', '{%s}', ARRAY[%s]::text[], %t, '%d', %s, %s, %s, %s, %s, %t, '{%s}', '{%s}')",
		joined(locks, ",", func(l Lock) string { return decimal(l.Number) }), joined(locks, ",", func(l Lock) string { return strconv.Itoa(l.ObjSubID()) }),
		joined(locks, ", ", Lock.keySQL), shared, token, quote(system), r.selfSQL(), intervalSQL(p.Waited), r.tickSQL(),
		backend, p.OthersDead, joined(p.Closes, ",", decimal), joined(p.Heard, ",", decimal))
}

// joined is a list in SQL: a text for each item, with a separator between them.
func joined[T any](items []T, separator string, text func(T) string) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = text(item)
	}
	return strings.Join(texts, separator)
}

// selfSQL are SQL expressions for what a run says of itself.
func (r Run) selfSQL() string {
	return fmt.Sprintf("%s, %s, %d, %s, %s, %s", quoteWord(r.Host), quoteWord(r.User), r.PID, quoteWord(r.Command), intervalSQL(r.Lease), intervalSQL(r.LostGrace))
}

// tickSQL are SQL expressions for the run's tick, or as many NULLs.
func (r Run) tickSQL() string {
	if r.Tick == nil {
		return "NULL, NULL, NULL"
	}
	return fmt.Sprintf("%s, %s, %s", instantSQL(r.Tick.At), intervalSQL(r.Tick.Per), instantSQL(r.Tick.now()))
}

// OpenRunsQuery is a query that counts the locks' runs whose commands may be alive.
func OpenRunsQuery(locks []Lock, shared bool) string {
	readers := ""
	if shared {
		readers = " AND reader = 0"
	}
	return "SELECT pg_catalog.count(*) FROM pglead.lock WHERE started IS NOT NULL AND ended IS NULL" +
		" AND (number, sub) IN (" + joined(locks, ", ", func(l Lock) string { return fmt.Sprintf("(%d, %d)", l.Number, l.ObjSubID()) }) + ")" + readers
}

// PausedQuery is a query for that pause of the locks that ends last. ParsePaused reads its rows.
// asIs is the session's AsIsSQL, or an expression with the same effect.
func PausedQuery(locks []Lock, asIs string) string {
	return `SELECT CASE WHEN paused_until <> 'infinity' THEN ceil(extract(epoch FROM paused_until)) END,
	CASE WHEN paused_until <> 'infinity' THEN ceil(extract(epoch FROM paused_until - pg_catalog.clock_timestamp())) END, paused_by, note, ` + asIs + `
FROM pglead.lock WHERE paused_until > pg_catalog.clock_timestamp() AND (` + joined(locks, " OR ", Lock.pausedSQL) + ") ORDER BY paused_until DESC LIMIT 1"
}

// PausedAmongQuery is a query for the indexes of the paused locks. ParsePausedAmong reads its rows.
func PausedAmongQuery(locks []Lock) string {
	var rows []string
	for i, l := range locks {
		rows = append(rows, fmt.Sprintf("(%d, bigint '%d', smallint '%d', %s)", i, l.Number, l.ObjSubID(), l.keySQL()))
	}
	return "SELECT w.i FROM (VALUES " + strings.Join(rows, ", ") + `) AS w (i, number, sub, key) WHERE EXISTS (
	SELECT FROM pglead.lock WHERE paused_until > pg_catalog.clock_timestamp() AND (` + pausedBySQL("w.number", "w.sub", "w.key") + "))"
}

// pausedBySQL is an SQL condition on a row of pglead.lock: a pause of this row is also one of the
// lock with this number, sub and key, which are SQL expressions. The function slots_1 in start.sql
// has the same condition, but an older ledger may lack that function. Slots have different numbers
// and the same key; a key that is the number itself has no slots.
func pausedBySQL(number, sub, key string) string {
	return fmt.Sprintf(`lock.number = %[1]s AND lock.sub = %[2]s
	OR lock.key = pg_catalog.left(%[3]s, %[4]d) AND lock.key NOT IN (%[5]s, %[6]s)`,
		number, sub, key, mostKey, spellingSQL("lock.number", "lock.sub"), spellingSQL(number, sub))
}

// spellingSQL is an SQL expression for the spelling of a number as a key. It uses only operators
// that PostgreSQL has for these types: instead of a missing one, somebody else's would be called.
func spellingSQL(number, sub string) string {
	return fmt.Sprintf("CASE %[2]s WHEN 1 THEN %[1]s::text ELSE pg_catalog.concat(%[1]s >> 32, ',', %[1]s << 32 >> 32) END", number, sub)
}

func (l Lock) pausedSQL() string {
	return pausedBySQL(fmt.Sprintf("bigint '%d'", l.Number), fmt.Sprintf("smallint '%d'", l.ObjSubID()), l.keySQL())
}

// MissingQuery is a query that records that a lock's command could not be executed.
func (r Run) MissingQuery(l Lock, status int) string {
	return fmt.Sprintf("SELECT pglead.missing_1('%d', '%d', %s, %s, %s, %d, %s, %d)",
		l.Number, l.ObjSubID(), l.keySQL(), quoteWord(r.Host), quoteWord(r.User), r.PID, quoteWord(r.Command), status)
}

// Outcome is how a run ended.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed"
	Timeout Outcome = "timeout"
	Lost    Outcome = "lost"
	Killed  Outcome = "killed"  // by a signal; or the guard died, or recorded the end in pglead's place
	Stopped Outcome = "stopped" // the command never began, or was asked to end
)

// End is the end of a run. By then nothing of its command is alive.
type End struct {
	Outcome Outcome
	Status  *int // the command's exit status, if it has one
	At      time.Time
}

// RecordSQL are SQL expressions that record the end for a lock. The session has to have the role
// that started the run.
func (e End) RecordSQL(id lockkey.ID, token int64, commit string) string {
	status, ago := "NULL", time.Duration(0)
	if e.Status != nil {
		status = strconv.Itoa(*e.Status)
	}
	if !e.At.IsZero() {
		ago = time.Since(e.At)
	}
	return fmt.Sprintf("pg_catalog.set_config('synchronous_commit', '%s', true), pglead.finish_1('%d', '%d', '%d', '%s', %s, %s)",
		commit, id.Number, id.ObjSubID(), token, e.Outcome, status, intervalSQL(ago))
}

// TidyQueries is a query that tidies up behind the end of a lock's run: after each of a reader's,
// and now and then after any. Otherwise there is none. If it fails, the next end does that, too.
func TidyQueries(id lockkey.ID, shared bool) []string {
	const seldom = 64 // by chance, and not by the token's remainder: on a quiet server all tokens of a key may be even
	if !shared && rand.N(seldom) != 0 {
		return nil
	}
	return []string{fmt.Sprintf("SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pglead.tidy_1('%d', '%d')", id.Number, id.ObjSubID())}
}

// intervalSQL is a duration in SQL. It is a literal, since an operator that nothing else needs
// would cost a new session 0.1 ms. PostgreSQL 14 accepts numbers of at most 31 bits in it; the
// hours never need so many.
func intervalSQL(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign = "-"
	}
	us := d.Abs().Microseconds()
	return fmt.Sprintf("interval '%s%d:%02d:%02d.%06d'", sign, us/3_600_000_000, us/60_000_000%60, us/1_000_000%60, us%1_000_000)
}

func instantSQL(at time.Time) string {
	return "'" + at.UTC().Format("2006-01-02 15:04:05.999999") + "+00'"
}

// This is how many characters of a text the ledger keeps.
const (
	mostKey  = 500
	mostWord = 200
	mostNote = 300
)

func quoteKey(key string) string   { return quoteMost(key, mostKey) }
func quoteWord(text string) string { return quoteMost(text, mostWord) }

// quoteMost is quote for a text of which the ledger keeps this many characters. With SQL_ASCII the
// server counts bytes, and would cut within a character, so there it gets a text that is cut
// already.
func quoteMost(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return quote(text)
	}
	bytes := most
	for !utf8.RuneStart(text[bytes]) {
		bytes--
	}
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most])
	}
	if len(text) == bytes {
		return quote(text)
	}
	return fmt.Sprintf("CASE WHEN pg_catalog.getdatabaseencoding() = 'SQL_ASCII' THEN %s ELSE %s END", quote(text[:bytes]), quote(text))
}

// quote turns a text into an SQL literal that every server reads alike, whatever its
// settings for literals are. Bytes that a text on the server can't contain become question
// marks.
func quote(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "?"), "?")
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if !strings.Contains(text, `\`) {
		return quoted
	}
	return "E" + strings.ReplaceAll(quoted, `\`, `\\`)
}
