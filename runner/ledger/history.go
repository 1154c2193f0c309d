package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pglead/pglead/lockkey"
)

// Running is the outcome of a run that has none yet.
const Running Outcome = "running"

// Entry is a run that has ended, or one that has started and not ended yet.
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
	Ended   time.Time // zero while it runs, and where nobody knows
	Outcome Outcome
	Status  *int          // the command's exit status, if it had one
	Waited  time.Duration // the lock-delay before the start
}

// Took is how long it ran, or zero where that isn't known.
func (r Entry) Took() time.Duration {
	if r.Ended.IsZero() {
		return 0
	}
	return max(0, r.Ended.Sub(r.Started))
}

// History is what is remembered of a key, the newest run first.
type History struct {
	Runs []Entry
	Now  time.Time // of the server
}

// ReadHistory reads the newest runs of a key under these numbers.
func ReadHistory(ctx context.Context, ask Ask, key string, ids []lockkey.ID, most int) (History, error) {
	h, vanished, err := readHistory(ctx, ask, key, ids, most)
	if err == nil && vanished {
		// Ended between the look at the tables and the one at the locks, perhaps.
		// A run is closed before its lock is free, so a second look decides.
		h, _, err = readHistory(ctx, ask, key, ids, most)
	}
	return h, err
}

func readHistory(ctx context.Context, ask Ask, key string, ids []lockkey.ID, most int) (h History, vanished bool, err error) {
	const columns = "number, sub, key, system, token, host, os_user, pid, command, role, started, "
	where := among(key, ids)
	rows, err := ask(ctx, fmt.Sprintf(`SELECT number, sub, key, system, token, host, os_user, pid, command, role,
	%s, %s, outcome, status, %s, running, %s
FROM (SELECT `+columns+`ended, outcome, status, waited, NULL::boolean AS running FROM pglead.run WHERE %s
	UNION ALL
	SELECT `+columns+`NULL, NULL, NULL, waited, cut IS NULL AND `+held+` FROM pglead.lock
	WHERE started IS NOT NULL AND ended IS NULL AND %s) AS r
ORDER BY r.started DESC, r.token DESC LIMIT %d`,
		epoch("r.started"), epoch("r.ended"), length("r.waited"), epoch("pg_catalog.now()"), where, where, most))
	if err != nil {
		return h, false, err
	}
	for _, row := range rows {
		r := reader{row: row}
		run := Entry{
			ID: r.id(), Key: r.text(), System: r.text(), Token: r.number(), Host: r.text(), User: r.text(), PID: int(r.number()),
			Command: r.text(), Role: r.text(), Started: r.time(), Ended: r.time(), Outcome: Outcome(r.text()), Status: r.whole(), Waited: r.length(),
		}
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

// Usually is the median of what the last successful runs took, or zero.
func (h History) Usually() time.Duration {
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

// Next is the run of the same lock that came after one of Runs, or nil.
func (h History) Next(of int) *Entry {
	for i := of - 1; i >= 0; i-- {
		if h.Runs[i].ID == h.Runs[of].ID {
			return &h.Runs[i]
		}
	}
	return nil
}
