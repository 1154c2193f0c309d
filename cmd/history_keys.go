package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// pastKey is what a list or a page of metrics shows about a key: its slots and readers together.
type pastKey struct {
	key     string
	success ledger.Success
	newest  ledger.Entry // it may be under way
	last    ledger.Entry // the last one that has ended
	running int
	pause   ledger.Pause
}

// pastKeysOf are in the order of the facts.
func pastKeysOf(facts ledger.Facts) []*pastKey {
	var all []*pastKey
	of := map[string]*pastKey{}
	for _, fact := range facts.List {
		r := of[fact.Last.Key]
		if r == nil {
			r = &pastKey{key: fact.Last.Key}
			of[r.key], all = r, append(all, r)
		}
		if fact.Success.Ended.After(r.success.Ended) {
			r.success = fact.Success
		}
		last := fact.Last
		if r.newest.Key == "" || last.Started.After(r.newest.Started) {
			r.newest = last
		}
		if last.Outcome == ledger.Running {
			r.running++
			last = fact.Before
		}
		if last.Started.After(r.last.Started) {
			r.last = last
		}
		if fact.Pause.Until.After(r.pause.Until) {
			r.pause = fact.Pause
		}
	}
	return all
}

// pastKeys are keys with their last runs, the newest first, and how to show them.
type pastKeys struct {
	keys  []*pastKey
	facts ledger.Facts
	none  string // the text if there are none
	width int    // of the terminal, or 0
}

// list shows the last run of each key that matches, or of all.
func (f *historyFlags) list(cmd *cobra.Command, patterns []string) error {
	write := map[string]func(io.Writer, pastKeys) error{"table": writeKeys, "json": writeKeysJSON, "csv": writeKeysCSV}[f.output.value]
	if write == nil {
		return usagef("pglead history KEY -o "+f.output.value, "--output %s takes one KEY", f.output.value)
	}
	return f.withLedger(cmd, f.openReader, func(ctx context.Context, on session.Connection) error {
		facts, err := ledger.FactsMatching(ctx, on, patterns, mostMatched+1)
		if err != nil {
			return err
		}
		if len(facts.List) > mostMatched {
			facts.List = facts.List[:mostMatched]
			oldest := facts.List[mostMatched-1].Last.Started
			if f.last == 0 && (f.since.value == 0 || facts.Now.Sub(oldest) <= f.since.value) {
				f.u.log.Warn(fmt.Sprintf("more than %d locks are remembered; these are the latest", mostMatched), "event", "ledger")
			}
		}
		p := pastKeys{facts: facts, width: foregroundWidth(os.Stdout), none: "no runs"}
		if len(patterns) > 0 {
			p.none += " of these keys"
		}
		p.none += " are remembered in " + visible.Text(f.target()) + pastRuns{since: f.since}.sinceText()
		p.keys = slices.DeleteFunc(pastKeysOf(facts), func(r *pastKey) bool {
			return f.since.value > 0 && facts.Now.Sub(r.newest.Started) > f.since.value
		})
		slices.SortStableFunc(p.keys, func(a, b *pastKey) int { return b.newest.Started.Compare(a.newest.Started) })
		if f.last > 0 {
			p.keys = p.keys[:min(len(p.keys), f.last)]
		}
		return write(cmd.OutOrStdout(), p)
	})
}

// writeKeys writes for people.
func writeKeys(w io.Writer, p pastKeys) error {
	rows := [][]string{{"KEY", "STARTED", "HOST", "TOOK", "RESULT", "LAST SUCCESS"}}
	var pauses []*inspect.Pause
	for _, r := range p.keys {
		if pause := pauseOf(r.key, r.pause); pause != nil {
			pauses = append(pauses, pause)
		}
		if !r.newest.Started.IsZero() {
			rows = append(rows, p.row(r))
		}
	}
	text := p.none + "\n"
	if len(rows) > 1 {
		text = strings.Join(columns(rows, p.width, shrinking{0, squeeze}, shrinking{2, shorten}), "\n") + "\n"
	}
	_, err := io.WriteString(w, text+pausesText(pauses, p.width))
	return err
}

func (p pastKeys) row(r *pastKey) []string {
	run, now := r.newest, p.facts.Now
	past := pastRuns{history: ledger.History{Runs: []ledger.Entry{run}, Now: now}}
	result, _ := past.result(0)
	row := []string{printable(r.key), whenExactly(run.Started, now), visible.Text(run.Host), past.lasted(run), visible.Text(result), "never"}
	if r.running > 1 && run.Outcome == ledger.Running {
		row[4] = fmt.Sprintf("%d running", r.running)
	}
	if !r.success.Ended.IsZero() {
		row[5] = roughly(now.Sub(r.success.Ended)) + " ago"
	}
	return row
}

// keyView is the -o json form of a key.
type keyView struct {
	Key         string         `json:"key"`
	LastRun     *runView       `json:"last_run"` // null if it was only paused
	LastSuccess *successView   `json:"last_success"`
	Running     int            `json:"running"`
	Paused      *inspect.Pause `json:"paused"`
}

func writeKeysJSON(w io.Writer, p pastKeys) error {
	views := []keyView{}
	for _, r := range p.keys {
		v := keyView{Key: r.key, LastSuccess: newSuccessView(r.success, p.facts.Now), Running: r.running, Paused: pauseOf(r.key, r.pause)}
		if !r.newest.Started.IsZero() {
			v.LastRun = new(newRunView(r.newest))
		}
		views = append(views, v)
	}
	return writeJSON(w, views)
}

func writeKeysCSV(w io.Writer, p pastKeys) error {
	var runs []ledger.Entry
	for _, r := range p.keys {
		if !r.newest.Started.IsZero() {
			runs = append(runs, r.newest)
		}
	}
	return writeHistoryCSV(w, pastRuns{history: ledger.History{Runs: runs}})
}
