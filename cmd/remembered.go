package cmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// asking lets the ledger ask by a viewer's connection.
func asking(viewer *session.Viewer) ledger.Ask {
	return func(ctx context.Context, sql string) ([][]string, error) { return viewer.Query(ctx, sql) }
}

// needLedger is for commands that are nothing without a ledger.
func needLedger(ctx context.Context, viewer *session.Viewer, target string) (ledger.Ask, error) {
	ask := asking(viewer)
	access, role, err := ledger.Look(ctx, ask)
	switch {
	case err != nil:
		return nil, err
	case access == ledger.Absent:
		return nil, session.Errorf(session.Denied, "pglead ledger install, as the owner of the database, makes one",
			"there is no ledger in %s, so that nothing is remembered", visible.Text(target))
	case access == ledger.Foreign:
		return nil, foreignLedger(target)
	case access == ledger.Denied:
		return nil, session.Errorf(session.Denied, "as its owner: GRANT USAGE ON SCHEMA pglead TO "+role,
			"the ledger in %s is not for the role %s", visible.Text(target), visible.Text(role))
	}
	return ask, nil
}

func foreignLedger(target string) error {
	return session.Errorf(session.Denied, "as its owner or a superuser: pglead ledger uninstall; then, as the owner of the database: pglead ledger install",
		"the ledger in %s can't be trusted: %s", visible.Text(target), ledger.Untrusted)
}

// remembered are the numbers under which the ledger may have a key: its own, and
// those of its slots, which are all that there can be where --slots doesn't say.
func (f *lookFlags) remembered(key string) ([]lockkey.ID, error) {
	scheme, err := f.scheme()
	if err != nil {
		return nil, err
	}
	if f.slots < 1 || f.slots > inspect.MostSlots {
		return nil, usagef("--slots %d: from 1 to %d", f.slots, inspect.MostSlots)
	}
	id, err := scheme.ID(key)
	if err != nil {
		return nil, usagef("%s: %w", printable(key), err)
	}
	ids := []lockkey.ID{id}
	slots := f.slots
	if slots == 1 {
		slots = inspect.MostSlots
	}
	for i := range slots {
		if slot, err := scheme.Slot(key, i+1); err == nil { // some schemes have none
			ids = append(ids, slot)
		}
	}
	return ids, nil
}

// aboutKey connects and looks at what is remembered of a key.
func (f *lookFlags) aboutKey(u *ui, cmd *cobra.Command, key string, look func(ctx context.Context, ask ledger.Ask, ids []lockkey.ID) error) error {
	ids, err := f.remembered(key)
	if err != nil {
		return err
	}
	return f.aboutLedger(u, cmd, func(ctx context.Context, ask ledger.Ask) error { return look(ctx, ask, ids) })
}

// aboutLedger connects to a database that has one.
func (f *lookFlags) aboutLedger(u *ui, cmd *cobra.Command, look func(ctx context.Context, ask ledger.Ask) error) error {
	if err := f.find(u, cmd); err != nil {
		return err
	}
	return f.look(func(ctx context.Context, viewer *session.Viewer) error {
		ask, err := needLedger(ctx, viewer, f.target())
		if err != nil {
			return err
		}
		return look(ctx, ask)
	})
}

// isPattern says whether an argument stands for several keys, as for ls.
func isPattern(key string) bool { return strings.ContainsAny(key, "*?") }

// factsMatching are those of the locks that patterns stand for, all of them.
func factsMatching(ctx context.Context, ask ledger.Ask, patterns ...string) (ledger.Facts, error) {
	facts, err := ledger.FactsMatching(ctx, ask, patterns, mostMatched+1)
	if err == nil && len(facts.List) > mostMatched {
		return facts, usagef("%s stands for more than %d locks", strings.Join(patterns, " "), mostMatched)
	}
	return facts, err
}

const mostMatched = 10_000

// pauseOf is a pause as -o json has it, or nil.
func pauseOf(key string, p ledger.Pause) *inspect.Pause {
	if !p.Paused() {
		return nil
	}
	of := &inspect.Pause{Key: key, By: p.By, Note: p.Note}
	if p.Until.Before(ledger.Endless()) {
		of.Until = &p.Until
	}
	return of
}

// pauseText is a pause as people read it.
func pauseText(p *inspect.Pause) string {
	pause := ledger.Pause{Until: ledger.Endless(), By: p.By, Note: p.Note}
	if p.Until != nil {
		pause.Until = *p.Until
	}
	return visible.Text(pause.String())
}

// mostRemembered bounds the keys of which a list of locks has what is remembered.
const mostRemembered = 1000

// factsFor are the facts of the keys that match, or none without a ledger.
func factsFor(ctx context.Context, viewer *session.Viewer, matches func(key string) bool) (ledger.Facts, error) {
	ask := asking(viewer)
	access, _, err := ledger.Look(ctx, ask)
	if err != nil || access != ledger.Granted {
		return ledger.Facts{}, err
	}
	facts, err := ledger.NewestFacts(ctx, ask, mostRemembered)
	facts.List = slices.DeleteFunc(facts.List, func(fact ledger.Fact) bool { return !matches(fact.Last.Key) })
	return facts, err
}

// withPauseOf adds the pause of one key.
func (f *lookFlags) withPauseOf(ctx context.Context, viewer *session.Viewer, locks []*inspect.Lock, key string) ([]*inspect.Lock, error) {
	ids, err := f.remembered(key)
	if err != nil {
		return nil, err
	}
	return f.withPauses(ctx, viewer, locks, func(of string, id lockkey.ID) bool { return of == key && slices.Contains(ids, id) })
}

// withPauses adds to locks that are held or waited for the pauses that there are, and
// those of locks that are free.
func (f *lookFlags) withPauses(ctx context.Context, viewer *session.Viewer, locks []*inspect.Lock, wants func(key string, id lockkey.ID) bool) ([]*inspect.Lock, error) {
	ask := asking(viewer)
	access, _, err := ledger.Look(ctx, ask)
	if err != nil || access != ledger.Granted {
		return locks, err
	}
	paused, err := ledger.Pauses(ctx, ask, mostRemembered)
	if err != nil {
		return nil, err
	}
	for _, fact := range paused.List {
		key, id := fact.Last.Key, fact.Last.ID
		if !wants(key, id) {
			continue
		}
		i := slices.IndexFunc(locks, func(l *inspect.Lock) bool { return l.Number() == id && l.Database == paused.Database })
		if i < 0 {
			i = len(locks)
			locks = append(locks, inspect.Free(paused.Database, key, id))
		}
		locks[i].Paused = pauseOf(key, fact.Pause)
	}
	return locks, nil
}

// busy are the locks that somebody holds or waits for.
func busy(locks []*inspect.Lock) []*inspect.Lock {
	return slices.DeleteFunc(slices.Clone(locks), func(l *inspect.Lock) bool { return len(l.Holders)+len(l.Waiters) == 0 })
}

// pausedLines say which keys are paused, a line each, of at most so many columns; 0 is
// as many as it takes.
func pausedLines(pauses []*inspect.Pause, width int) (lines []string) {
	const leastKey = 16
	for _, p := range pauses {
		key, rest := printable(p.Key), ": no start "+pauseText(p)
		line := key + rest
		if width > 0 {
			line = shorten(squeeze(key, max(leastKey, width-utf8.RuneCountInString(rest)))+rest, width)
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// pausesOf are those of the locks that have one.
func pausesOf(locks []*inspect.Lock) (pauses []*inspect.Pause) {
	for _, l := range locks {
		if l.Paused != nil {
			pauses = append(pauses, l.Paused)
		}
	}
	return pauses
}

// writePauses writes pauses under a table.
func writePauses(w io.Writer, pauses []*inspect.Pause, width int) error {
	for i, line := range pausedLines(pauses, width) {
		if i == 0 {
			line = "\n" + line
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// took is how long a run lasted: 0.4s, 42s, 1m02s, 3h05m, 2d03h.
func took(d time.Duration) string {
	const day = 24 * time.Hour
	whole := d.Truncate(time.Second)
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Truncate(100*time.Millisecond).Seconds())
	case whole < time.Minute:
		return fmt.Sprintf("%ds", whole/time.Second)
	case whole < time.Hour:
		return fmt.Sprintf("%dm%02ds", whole/time.Minute, whole%time.Minute/time.Second)
	case whole < day:
		return fmt.Sprintf("%dh%02dm", whole/time.Hour, whole%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", whole/day, whole%day/time.Hour)
}

// roughly is a length of time in one unit: 40s, 12m, 26h, 3d.
func roughly(d time.Duration) string {
	switch d = max(0, d); {
	case d < 100*time.Second:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 100*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 49*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// whenExactly is an instant as tables of runs have it, of which a minute may have several.
func whenExactly(t, now time.Time) string {
	if now.Sub(t) > 300*24*time.Hour {
		return t.Local().Format("Jan _2 2006")
	}
	return t.Local().Format("Jan _2 15:04:05")
}

// when is an instant as sentences have it.
func when(t, now time.Time) string {
	if now.Sub(t) > 300*24*time.Hour {
		return t.Local().Format("Jan _2  2006")
	}
	return t.Local().Format("Jan _2 15:04")
}
