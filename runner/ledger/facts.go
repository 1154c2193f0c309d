package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// Fact is what is known of one lock: its last run, its last success, its pause.
type Fact struct {
	Last    Entry // the last run; Key and ID are always set
	Before  Entry // the previous run, while Last has not ended
	Success Success
	Pause   Pause
}

// Success is the last run that succeeded, also as a part of JSON.
type Success struct {
	Started time.Time `json:"started"` // zero: never
	Ended   time.Time `json:"ended"`
	Host    string    `json:"host"`
}

// Pause keeps the runs of a lock from starting. The zero Pause does not.
type Pause struct {
	Until time.Time // Endless: until somebody ends the pause
	By    string
	Note  string
}

// Paused says whether there is a pause.
func (p Pause) Paused() bool { return !p.Until.IsZero() }

// String says until when the key is paused, and by whom. It does not escape what others wrote.
func (p Pause) String() string { return p.text("until it is resumed") }

// Was is String for a pause that is over.
func (p Pause) Was() string { return p.text("with no end set") }

func (p Pause) text(endless string) string {
	text := endless
	if p.Until.Before(Endless()) {
		text = "until " + Clock(p.Until, time.Now())
	}
	who := p.By
	if p.Note != "" {
		who = strings.TrimPrefix(who+": "+p.Note, ": ")
	}
	if who != "" {
		text += " (" + who + ")"
	}
	return text
}

// Clock is an instant as text: without the date if it is today, and with seconds if it
// is near.
func Clock(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	format := "15:04"
	if apart := t.Sub(now).Abs(); apart < 10*time.Minute {
		format = time.TimeOnly
	}
	switch {
	case t.YearDay() == now.YearDay() && t.Year() == now.Year():
	case t.Sub(now).Abs() > 300*24*time.Hour:
		format = "Jan _2 2006"
	default:
		format = "Jan _2 " + format
	}
	return t.Format(format)
}

// Facts are the facts of several locks. The locks with the newest runs come first.
type Facts struct {
	List     []Fact
	Database string    // the ledger's
	Now      time.Time // by the server's clock
}

// Pause is the pause that ends last, or the zero Pause.
func (f Facts) Pause() (last Pause) {
	for _, fact := range f.List {
		if fact.Pause.Until.After(last.Until) {
			last = fact.Pause
		}
	}
	return last
}

// factsOf are the facts of the locks of a key that have these numbers.
func factsOf(ctx context.Context, on session.Connection, key string, ids []lockkey.ID) (Facts, error) {
	return readFacts(ctx, on, among(key, ids), 2*len(ids)+1000)
}

// FactsOfLocks are the facts of the locks that have these numbers, also if another key was the last
// to have one of them.
func FactsOfLocks(ctx context.Context, on session.Connection, ids []lockkey.ID) (Facts, error) {
	return readFacts(ctx, on, numbered(ids), 2*len(ids)+1000)
}

// FactsMatching are the facts of the locks whose key matches a pattern (Pattern). Without patterns
// every key matches.
func FactsMatching(ctx context.Context, on session.Connection, patterns []string, most int) (Facts, error) {
	return readFacts(ctx, on, "key IS NOT NULL AND "+like(patterns), most)
}

// PausedMatching are the facts of the locks whose key matches a pattern, and that have a pause,
// which may be over.
func PausedMatching(ctx context.Context, on session.Connection, pattern string, most int) (Facts, error) {
	return readFacts(ctx, on, "key IS NOT NULL AND paused_until IS NOT NULL AND "+like([]string{pattern}), most)
}

func like(patterns []string) string {
	if len(patterns) == 0 {
		return "true"
	}
	return "(" + joined(patterns, " OR ", func(p string) string { return "key LIKE " + ParsePattern(p).like() }) + ")"
}

// Pauses are the facts of locks that are paused, and whose key matches a pattern. Without patterns
// every key matches.
func Pauses(ctx context.Context, on session.Connection, patterns []string, most int) (Facts, error) {
	return readFacts(ctx, on, "paused_until > pg_catalog.now() AND "+like(patterns), most)
}

// PausesOf are the facts of those paused locks whose pauses keep a lock from starting: the lock
// itself, and those with its key, such as its slots.
func PausesOf(ctx context.Context, on session.Connection, l Lock, most int) (Facts, error) {
	return readFacts(ctx, on, "paused_until > pg_catalog.now() AND ("+l.pausedSQL()+")", most)
}

func readFacts(ctx context.Context, on session.Connection, where string, most int) (Facts, error) {
	f, vanished, err := readFactsOnce(ctx, on, where, most)
	if err == nil && vanished { // see ReadHistory
		f, _, err = readFactsOnce(ctx, on, where, most)
	}
	return f, err
}

func readFactsOnce(ctx context.Context, on session.Connection, where string, most int) (f Facts, vanished bool, err error) {
	rows, err := on.Query(ctx, fmt.Sprintf(`SELECT l.number, l.sub, l.key, %s, %s, CASE WHEN open THEN cut IS NULL AND held END,
	%s, %s, ok_host, paused_until > pg_catalog.now(), %s, paused_by, note, %s, pg_catalog.current_database()
FROM (SELECT *, started IS NOT NULL AND ended IS NULL AS open, %s AS held FROM pglead.lock WHERE %s ORDER BY started DESC NULLS LAST LIMIT %d) AS l
LEFT JOIN LATERAL (SELECT * FROM pglead.run AS r WHERE r.number = l.number AND r.sub = l.sub AND `+begunSQL+` ORDER BY r.started DESC LIMIT 1) AS p
	ON open OR l.outcome = 'stopped' AND l.status IS NULL OR p.token = 0 AND (l.started IS NULL OR p.started > l.started)
ORDER BY l.started DESC NULLS LAST`,
		entry("l"), entry("p"), epoch("ok_started"), epoch("ok_ended"), epoch("paused_until"), epoch("pg_catalog.now()"), heldSQL, where, most))
	if err != nil {
		return f, false, err
	}
	for _, row := range rows {
		r := reader{row: row}
		id := r.id()
		key := r.text()
		fact := Fact{Last: r.entry(id, key), Before: r.entry(id, key)}
		switch r.text() {
		case "t":
			fact.Last.Outcome, fact.Last.Ended = Running, time.Time{}
		case "f":
			fact.Last.Outcome, fact.Last.Ended, vanished = Lost, time.Time{}, true
		default:
			// Before is a later run, whose command was missing, or the one before a start whose
			// command never began.
			if !fact.Before.Started.IsZero() || fact.Last.Outcome == Stopped && fact.Last.Status == nil {
				fact.Last, fact.Before = fact.Before, Entry{ID: id, Key: key}
			}
		}
		fact.Success = Success{Started: r.time(), Ended: r.time(), Host: r.text()}
		paused, pause := r.truth(), Pause{Until: r.time(), By: r.text(), Note: r.text()}
		if paused {
			fact.Pause = pause
		}
		f.Now, f.Database = r.time(), r.text()
		if r.err != nil {
			return f, false, r.err
		}
		f.List = append(f.List, fact)
	}
	return f, vanished, nil
}

// Keys are the keys that begin with this prefix.
func Keys(ctx context.Context, on session.Connection, prefix string, most int) ([]string, error) {
	rows, err := on.Query(ctx, fmt.Sprintf("SELECT DISTINCT key FROM pglead.lock WHERE key IS NOT NULL AND pg_catalog.left(key, %d) = %s ORDER BY key LIMIT %d",
		len([]rune(prefix)), quote(prefix), most))
	return column(rows, err)
}
