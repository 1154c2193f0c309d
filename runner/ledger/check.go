package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/pglead/pglead/lockkey"
)

// Verdict says whether a key had a success in time, and what has gone wrong since.
type Verdict struct {
	Known   bool    // it has ever started
	Success Success // the last one
	Late    bool    // no success ended within the time asked for
	Failed  int     // runs since then that failed or were lost
	Failure Entry   // the last of them
	Running []Entry
	Pause   Pause
	Now     time.Time
}

// Fine says that nobody needs to look into it.
func (v Verdict) Fine() bool { return !v.Late && v.Failed == 0 }

// Ago is how long ago the last success ended.
func (v Verdict) Ago() time.Duration { return v.Now.Sub(v.Success.Ended) }

// Check judges a key under these numbers.
func Check(ctx context.Context, ask Ask, key string, ids []lockkey.ID, within time.Duration) (Verdict, error) {
	facts, err := FactsOf(ctx, ask, key, ids)
	if err != nil {
		return Verdict{}, err
	}
	v := judge(facts, within)
	since := "true"
	if !v.Success.Ended.IsZero() {
		since = "ended > 'epoch'::timestamptz + " + interval(v.Success.Ended.Sub(time.UnixMicro(0)))
	}
	rows, err := ask(ctx, fmt.Sprintf(`SELECT pg_catalog.count(*) OVER (), number, sub, key, %s FROM pglead.run AS r
WHERE %s AND outcome IN ('failed', 'timeout', 'lost', 'killed') AND %s ORDER BY r.ended DESC LIMIT 1`,
		entry("r"), among(key, ids), since))
	if err != nil || len(rows) == 0 {
		return v, err
	}
	r := reader{row: rows[0]}
	n := int(r.number())
	id, key := r.id(), r.text()
	failure := r.entry(id, key)
	if v.Failed == 0 { // otherwise judge has found a later one, which nobody has closed yet
		v.Failure = failure
	}
	v.Failed += n
	return v, r.err
}

// judge is Check without the runs that have ended.
func judge(facts Facts, within time.Duration) Verdict {
	v := Verdict{Now: facts.Now, Pause: facts.Pause()}
	for _, f := range facts.List {
		v.Known = v.Known || !f.Last.Started.IsZero()
		if f.Success.Ended.After(v.Success.Ended) {
			v.Success = f.Success
		}
		switch {
		case f.Last.Outcome == Running:
			v.Running = append(v.Running, f.Last)
		case f.Last.Outcome == Lost && f.Last.Ended.IsZero():
			v.Failed++
			v.Failure = f.Last
		}
	}
	v.Late = v.Success.Ended.IsZero() || v.Ago() > within
	return v
}
