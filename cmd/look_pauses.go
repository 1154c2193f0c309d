package cmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

// pauseOf is the -o json form of a pause, or nil.
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

// withPauses adds the pauses to the locks, and adds free locks that are paused. read asks the ledger
// for the pauses, which has its own spelling of the keys.
func (f *lookFlags) withPauses(
	ctx context.Context, client *session.Client, locks []*inspect.Lock, read func(on session.Connection, most int) (ledger.Facts, error),
) ([]*inspect.Lock, error) {
	on, err := grantedLedger(ctx, client)
	if on == nil {
		return locks, err
	}
	paused, err := read(on, mostRemembered+1)
	if err != nil {
		return locks, f.unlessUnreadable(err, "pauses")
	}
	if len(paused.List) > mostRemembered {
		paused.List = paused.List[:mostRemembered]
		if !f.cut {
			f.u.log.Warn(fmt.Sprintf("more than %d locks are paused; these are the latest", mostRemembered), "event", "ledger")
		}
		f.cut = true
	}
	for _, fact := range paused.List {
		key, id := fact.Last.Key, fact.Last.ID
		i := slices.IndexFunc(locks, func(l *inspect.Lock) bool { return l.Number() == id && l.Database == paused.Database })
		if i < 0 {
			i = len(locks)
			locks = append(locks, inspect.Free(paused.Database, key, id))
		}
		locks[i].Paused = pauseOf(key, fact.Pause)
	}
	return locks, nil
}

// unlessUnreadable returns an error unless it says that the ledger can't be read now, for whatever
// reason the server gives. Then it warns once that something is not shown: the command can still say
// who has the locks.
func (f *lookFlags) unlessUnreadable(err error, what string) error {
	if !errors.Is(err, ledger.ErrLocked) && session.AnsweredError(err) == nil {
		return err
	}
	if !slices.Contains(f.warned, what) {
		_, hint := status(err)
		if len(f.warned) > 0 { // it has been given
			hint = ""
		}
		f.u.say(slog.LevelWarn, err.Error()+"; "+what+" are not shown", hint, "event", "ledger")
		f.warned = append(f.warned, what)
	}
	return nil
}

func pausesOf(locks []*inspect.Lock) (pauses []*inspect.Pause) {
	for _, l := range locks {
		if l.Paused != nil {
			pauses = append(pauses, l.Paused)
		}
	}
	return pauses
}

// pausedLines say which keys are paused, one a line, with at most this many columns; 0 means
// no limit.
func pausedLines(pauses []*inspect.Pause, width int) (lines []string) {
	const leastKey = 16
	for _, p := range pauses {
		key, rest := printable(p.Key), ": no start "+p.Text
		line := key + rest
		if width > 0 {
			line = shorten(squeeze(key, max(leastKey, width-cells(rest)))+rest, width)
		}
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// pausesText is the text below a table about pauses.
func pausesText(pauses []*inspect.Pause, width int) string {
	lines := pausedLines(pauses, width)
	if len(lines) == 0 {
		return ""
	}
	return "\n" + strings.Join(lines, "\n") + "\n"
}
