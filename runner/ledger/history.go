package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// Running is the outcome of a run that has not ended.
const Running Outcome = "running"

// Entry is a run that has ended, or has started but not ended yet.
type Entry struct {
	ID      lockkey.ID
	Key     string
	System  string // the cluster that the token belongs to
	Token   int64
	Host    string
	User    string
	PID     int
	Command string
	Role    string
	Started time.Time
	Ended   time.Time // zero while it runs, or if it isn't known
	Outcome Outcome
	Status  *int          // the command's exit status, if it had one
	Waited  time.Duration // the lock-delay before the start
}

// Missing says that there was nothing to run: the command was not found, or could not
// be executed.
func (r Entry) Missing() bool { return r.Token == 0 && r.Status != nil }

// Took is how long the run lasted, or zero if that isn't known.
func (r Entry) Took() time.Duration {
	if r.Ended.IsZero() {
		return 0
	}
	return max(0, r.Ended.Sub(r.Started))
}

// History is what a ledger remembers of a key, the newest run first.
type History struct {
	Runs []Entry
	Now  time.Time // by the server's clock
}

// Past says which runs of a key to read.
type Past struct {
	Key   string
	IDs   []lockkey.ID  // the numbers that the ledger may have for the key
	Since time.Duration // only runs that started within this time; 0: any
	Most  int           // only so many of the newest runs
}

// ReadHistory reads runs of a key.
func ReadHistory(ctx context.Context, on session.Connection, past Past) (History, error) {
	h, vanished, err := readHistory(ctx, on, past)
	if err == nil && vanished {
		// The run may have ended after the query read the tables and before it read the locks. A
		// run is closed before its lock is free, so a second look decides.
		h, _, err = readHistory(ctx, on, past)
	}
	return h, err
}

func readHistory(ctx context.Context, on session.Connection, past Past) (h History, vanished bool, err error) {
	const columns = "number, sub, key, system, token, host, os_user, pid, command, role, waited, started, "
	where := among(past.Key, past.IDs)
	if past.Since > 0 {
		where += " AND started > pg_catalog.now() - " + intervalSQL(past.Since)
	}
	rows, err := on.Query(ctx, fmt.Sprintf(`SELECT number, sub, key, %s, running, %s
FROM (SELECT `+columns+`ended, outcome, status, NULL::boolean AS running FROM pglead.run AS r WHERE %s AND `+begunSQL+`
	UNION ALL
	SELECT `+columns+`NULL, NULL, NULL, cut IS NULL AND `+heldSQL+` FROM pglead.lock
	WHERE started IS NOT NULL AND ended IS NULL AND %s) AS r
ORDER BY r.started DESC, r.token DESC LIMIT %d`,
		entry("r"), epoch("pg_catalog.now()"), where, where, past.Most))
	if err != nil {
		return h, false, err
	}
	for _, row := range rows {
		r := reader{row: row}
		id, key := r.id(), r.text()
		run := r.entry(id, key)
		switch r.text() {
		case "t":
			run.Outcome = Running
		case "f":
			run.Outcome, vanished = Lost, true
		}
		h.Now = r.time()
		if r.err != nil {
			return h, false, r.err
		}
		h.Runs = append(h.Runs, run)
	}
	return h, vanished, nil
}

// MedianDuration is the median duration of the last successful runs, or zero.
func (h History) MedianDuration() time.Duration {
	const last = 20
	var took []time.Duration
	for _, r := range h.Runs {
		if r.Outcome == OK && len(took) < last {
			took = append(took, r.Took())
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return (took[(len(took)-1)/2] + took[len(took)/2]) / 2
}

// Next is the run of the same lock that follows Runs[of], or nil.
func (h History) Next(of int) *Entry {
	for i := of - 1; i >= 0; i-- {
		if h.Runs[i].ID == h.Runs[of].ID && !h.Runs[i].Missing() {
			return &h.Runs[i]
		}
	}
	return nil
}
