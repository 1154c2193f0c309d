package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// pauseOf is a pause as -o json has it, or nil.
func pauseOf(key string, p ledger.Pause) *inspect.Pause {
	if !p.Paused() {
		return nil
	}
	of := &inspect.Pause{Key: key, Text: visible.Text(p.String()), By: p.By, Note: p.Note}
	if p.Until.Before(ledger.Endless()) {
		of.Until = &p.Until
	}
	return of
}

// withPauseOf adds the pause of one key.
func (f *lookFlags) withPauseOf(ctx context.Context, viewer *session.Viewer, locks []*inspect.Lock, key string) ([]*inspect.Lock, error) {
	ids, err := f.remembered(key)
	if err != nil {
		return nil, err
	}
	return f.withPauses(ctx, viewer, locks, func(of string, id lockkey.ID) bool { return of == key && slices.Contains(ids, id) })
}

// withPauses adds their pauses to the locks, and the free locks that are paused.
func (f *lookFlags) withPauses(ctx context.Context, viewer *session.Viewer, locks []*inspect.Lock, wants func(key string, id lockkey.ID) bool) ([]*inspect.Lock, error) {
	ask, err := grantedLedger(ctx, viewer)
	if ask == nil {
		return locks, err
	}
	paused, err := ledger.Pauses(ctx, ask, mostRemembered)
	if errors.As(err, new(*ledger.LockedError)) { // no reason not to say who has the locks
		f.warnOnce(err)
		return locks, nil
	}
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

// pausesOf are those of the locks that have one.
func pausesOf(locks []*inspect.Lock) (pauses []*inspect.Pause) {
	for _, l := range locks {
		if l.Paused != nil {
			pauses = append(pauses, l.Paused)
		}
	}
	return pauses
}

// pausedLines say which keys are paused, a line each, of at most so many columns; 0 is
// as many as it takes.
func pausedLines(pauses []*inspect.Pause, width int) (lines []string) {
	const leastKey = 16
	for _, p := range pauses {
		key, rest := printable(p.Key), ": no start "+p.Text
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
