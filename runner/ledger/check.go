package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/session"
)

// Health says whether a key had a success in time, and what has gone wrong since.
type Health struct {
	Known   bool    // the key has ever started
	Success Success // the last one
	Late    bool    // no success ended within the time asked for
	Failed  int     // runs since then that failed or were lost
	Failure Entry   // the last of these runs
	Running []Entry
	Pause   Pause
	Now     time.Time
}

// Fine says whether nobody needs to look into it.
func (h Health) Fine() bool { return !h.Late && h.Failed == 0 }

// Ago is how long ago the last success ended.
func (h Health) Ago() time.Duration { return h.Now.Sub(h.Success.Ended) }

// Check judges the runs of a key that the ledger has under these numbers.
func Check(ctx context.Context, on session.Connection, key string, ids []lockkey.ID, within time.Duration) (Health, error) {
	facts, err := factsOf(ctx, on, key, ids)
	if err != nil {
		return Health{}, err
	}
	health := judge(facts, within)
	since := "true"
	if !health.Success.Ended.IsZero() {
		since = "ended > 'epoch'::timestamptz + " + intervalSQL(health.Success.Ended.Sub(time.UnixMicro(0)))
	}
	rows, err := on.Query(ctx, fmt.Sprintf(`SELECT pg_catalog.count(*) OVER (), number, sub, key, %s FROM pglead.run AS r
WHERE %s AND outcome IN ('failed', 'timeout', 'lost', 'killed') AND %s ORDER BY r.ended DESC LIMIT 1`,
		entry("r"), among(key, ids), since))
	if err != nil || len(rows) == 0 {
		return health, err
	}
	r := reader{row: rows[0]}
	n := int(r.number())
	id, key := r.id(), r.text()
	failure := r.entry(id, key)
	if health.Failed == 0 { // otherwise judge has found a later failure, a lost run that nobody has closed yet
		health.Failure = failure
	}
	health.Failed += n
	return health, r.err
}

// judge does the part of Check that needs no question for runs that have ended.
func judge(facts Facts, within time.Duration) Health {
	health := Health{Now: facts.Now, Pause: facts.Pause()}
	var madeUp time.Time // the last start of a success, which makes up for a loss before it
	for _, f := range facts.List {
		if f.Success.Ended.After(health.Success.Ended) {
			health.Success = f.Success
		}
		if f.Success.Started.After(madeUp) {
			madeUp = f.Success.Started
		}
	}
	for _, f := range facts.List {
		health.Known = health.Known || !f.Last.Started.IsZero()
		switch {
		case f.Last.Outcome == Running:
			health.Running = append(health.Running, f.Last)
		// Readers and other slots close no run, so it may be open for ever.
		case f.Last.Outcome == Lost && f.Last.Ended.IsZero() && !f.Last.Started.Before(madeUp):
			health.Failed++
			health.Failure = f.Last
		}
	}
	health.Late = health.Success.Ended.IsZero() || health.Ago() > within
	return health
}
