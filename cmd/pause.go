package cmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

func newPauseCmd(u *ui) *cobra.Command {
	f := lookFlags{options: newOptions(u)}
	var length duration
	cmd := &cobra.Command{
		Use:   "pause KEY|PATTERN [flags]",
		Short: "Let nobody start for some time, or until resume",
		Long: `Let no pglead start a command under the key, for a length of time or until
pglead resume. What runs goes on; pglead stepdown ends it. The ledger keeps the
pause, so a pglead without a ledger starts all the same.

A pattern (see pglead ls) stands for the keys that the ledger has now: a key
that runs for the first time later is not paused. A new pause replaces the old
one, and says so.`,
		Example: `  pglead pause nightly --for 2h --note 'disk swap'
  pglead pause 'import/*'
  pglead resume nightly`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("for") && length.value < time.Second:
				return usagef("", "--for %s is too short: at least 1s", &length)
			case !utf8.ValidString(f.note):
				return usagef("", "--note is not UTF-8")
			}
			request := ledger.PauseRequest{For: length.value, By: f.description("").User, Note: f.note}
			pause := func(k ledgerKey, ctx context.Context) (string, error) { return k.pause(ctx, request) }
			return f.eachKey(cmd, args[0], allMatching, pause)
		},
	}
	cmd.Flags().Var(&length, "for", "how long, by the server's clock (default until pglead resume)")
	f.register(cmd, "note")
	cmd.Flags().Lookup("note").Usage = "say why, in this `TEXT`, to those who may not start"
	f.lockFlags(cmd)
	return cmd
}

func newResumeCmd(u *ui) *cobra.Command {
	f := lookFlags{options: newOptions(u)}
	cmd := &cobra.Command{
		Use:        "resume KEY|PATTERN [flags]",
		SuggestFor: []string{"unpause"},
		Short:      "End a pause",
		Long: `End the pause of a key, or of all keys that match a pattern (see pglead ls).
Runs that wait for this start within some seconds.`,
		Example: `  pglead resume nightly
  pglead resume 'import/*'`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.eachKey(cmd, args[0], pausedMatching, ledgerKey.resume)
		},
	}
	f.lockFlags(cmd)
	return cmd
}

// ledgerKey is a key with the numbers under which the ledger may have it.
type ledgerKey struct {
	on      session.Connection
	key     string
	ids     []lockkey.ID
	matched bool // by a pattern
}

// eachKey does something with the given key, or with each key that find finds for a pattern, and
// writes the result.
func (f *lookFlags) eachKey(
	cmd *cobra.Command, key string,
	find func(ctx context.Context, on session.Connection, pattern string) (ledger.Facts, error),
	do func(k ledgerKey, ctx context.Context) (text string, err error),
) error {
	var ids []lockkey.ID
	only, one := ledger.ParsePattern(key).Key()
	if one {
		var err error
		if ids, err = f.numbersOf(only); err != nil {
			return err
		}
	}
	w := cmd.OutOrStdout()
	return f.withLedger(cmd, openWriter, func(ctx context.Context, on session.Connection) error {
		keys := []ledgerKey{{on: on, key: only, ids: ids}}
		if !one {
			facts, err := find(ctx, on, key)
			switch {
			case err != nil:
				return err
			case len(facts.List) > mostMatched:
				return usagef("a narrower pattern, several times", "%s stands for more than %d locks", printable(key), mostMatched)
			}
			keys = keysOf(on, facts)
		}
		changed := false
		for _, k := range keys {
			text, err := do(k, ctx)
			if err == nil && text != "" {
				changed = true
				_, err = fmt.Fprintln(w, text)
			}
			if err != nil {
				return err
			}
		}
		switch {
		case len(keys) == 0:
			f.u.log.Warn("no key that is remembered matches "+printable(key), "event", "failed")
			return &silentExit{code: exitNo}
		case !changed: // by resume
			_, err := fmt.Fprintln(w, printable(key)+": none was paused")
			return err
		}
		return nil
	})
}

// allMatching are the facts of all locks that match a pattern.
func allMatching(ctx context.Context, on session.Connection, pattern string) (ledger.Facts, error) {
	return ledger.FactsMatching(ctx, on, []string{pattern}, mostMatched+1)
}

// pausedMatching returns the facts of the matching locks that have a pause. If none has one it
// returns any one match, so that the caller can tell "nothing is paused" from "no such key".
func pausedMatching(ctx context.Context, on session.Connection, pattern string) (ledger.Facts, error) {
	facts, err := ledger.PausedMatching(ctx, on, pattern, mostMatched+1)
	if err == nil && len(facts.List) == 0 {
		return ledger.FactsMatching(ctx, on, []string{pattern}, 1)
	}
	return facts, err
}

// keysOf are the keys of these locks, in their order. A key that is the number itself is another
// one than a key with the same text.
func keysOf(on session.Connection, facts ledger.Facts) (keys []ledgerKey) {
	for _, fact := range facts.List {
		key, id := fact.Last.Key, fact.Last.ID
		i := slices.IndexFunc(keys, func(k ledgerKey) bool {
			return k.key == key && k.ids[0].Pair == id.Pair && k.ids[0].SpelledBy(key) == id.SpelledBy(key)
		})
		if i < 0 {
			i, keys = len(keys), append(keys, ledgerKey{on: on, key: key, matched: true})
		}
		keys[i].ids = append(keys[i].ids, id)
	}
	slices.SortFunc(keys, func(a, b ledgerKey) int { return strings.Compare(a.key, b.key) })
	return keys
}

func (k ledgerKey) facts(ctx context.Context) (ledger.Facts, error) {
	return ledger.FactsOfLocks(ctx, k.on, k.ids)
}

func (k ledgerKey) pause(ctx context.Context, request ledger.PauseRequest) (text string, err error) {
	before, err := k.facts(ctx)
	if err != nil {
		return "", err
	}
	if err := ledger.PauseKey(ctx, k.on, ledger.Lock{ID: k.ids[0], Key: k.key}, request); err != nil {
		return "", err
	}
	facts, err := k.facts(ctx)
	return pausedText(k.key, before.Pause(), facts), err
}

func (k ledgerKey) resume(ctx context.Context) (text string, err error) {
	before, err := k.facts(ctx)
	if err != nil {
		return "", err
	}
	was, err := ledger.ResumeKey(ctx, k.on, ledger.Lock{ID: k.ids[0], Key: k.key})
	switch pause := before.Pause(); {
	case err != nil:
		return "", err
	case was && pause.Paused():
		return printable(k.key) + ": may start again; was paused " + visible.Text(pause.Was()), nil
	case was: // but its time was already over
		return printable(k.key) + ": may start again", nil
	case k.matched:
		return "", nil
	}
	return printable(k.key) + ": was not paused", nil
}

// pausedText says what applies from now on, what applied before, and which runs continue
// anyway.
func pausedText(key string, before ledger.Pause, facts ledger.Facts) string {
	text := printable(key) + ": the pause is over already"
	if pause := facts.Pause(); pause.Paused() {
		text = printable(key) + ": no start " + visible.Text(pause.String())
	}
	if before.Paused() {
		text += "; replaces the pause " + visible.Text(before.String())
	}
	if !slices.ContainsFunc(facts.List, func(fact ledger.Fact) bool { return !fact.Last.Started.IsZero() || !fact.Before.Started.IsZero() }) {
		text += "; no run of it is remembered"
	}
	var runs []string
	for _, fact := range facts.List {
		if fact.Last.Outcome == ledger.Running {
			runs = append(runs, visible.Text(fact.Last.Host)+" runs on since "+ledger.Clock(fact.Last.Started, facts.Now))
		}
	}
	if len(runs) > 0 {
		text += "; " + strings.Join(runs, ", ")
	}
	return text
}
