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
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/visible"
)

func newPauseCmd(u *ui, stdout io.Writer) *cobra.Command {
	f := newLookFlags()
	var length duration
	cmd := &cobra.Command{
		Use:   "pause KEY|PATTERN [flags]",
		Short: "Let nobody start until a time, or until resume",
		Long: `Let no pglead start a command under the key, for a length of time or until
pglead resume. What runs, runs on: pglead stepdown ends it. It is the ledger
that keeps a pause, so that pgleads without one start all the same.

A pattern, as for pglead ls, stands for the keys that are remembered now: one
that runs for the first time is not among them. A pause takes the place of the
one that there is, and says so.`,
		Example: `  pglead pause nightly --for 2h --note 'disk swap'
  pglead pause 'import/*'
  pglead resume nightly`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("for") && length.value < time.Second:
				return usagef("--for %s is too short: at least 1s", &length)
			case !utf8.ValidString(f.note):
				return usagef("--note is not UTF-8")
			}
			wish := ledger.Wish{For: length.value, By: f.description("").User, Note: f.note}
			return f.eachKey(u, cmd, args[0], func(ctx context.Context, ask ledger.Ask, k rememberedKey) error {
				before, err := k.facts(ctx, ask)
				if err != nil {
					return err
				}
				if err := ledger.PauseKey(ctx, ask, k.key, k.ids[0], wish); err != nil {
					return err
				}
				facts, err := k.facts(ctx, ask)
				if err != nil {
					return err
				}
				_, err = io.WriteString(stdout, pausedText(k.key, pauseIn(before), facts)+"\n")
				return err
			})
		},
	}
	f.serverFlags(cmd)
	cmd.Flags().Var(&length, "for", "so long, by the server's clock (default until pglead resume)")
	cmd.Flags().StringVar(&f.note, "note", "", "`TEXT` for those who may not start now: why")
	f.keyFlags(cmd)
	return cmd
}

// rememberedKey is a key with the numbers under which the ledger may have it.
type rememberedKey struct {
	key string
	ids []lockkey.ID
}

func (k rememberedKey) facts(ctx context.Context, ask ledger.Ask) (ledger.Facts, error) {
	return ledger.FactsOf(ctx, ask, k.key, k.ids)
}

// eachKey does something with the key that is meant, or with each that a pattern stands
// for.
func (f *lookFlags) eachKey(u *ui, cmd *cobra.Command, key string, do func(ctx context.Context, ask ledger.Ask, k rememberedKey) error) error {
	if !isPattern(key) {
		return f.aboutKey(u, cmd, key, func(ctx context.Context, ask ledger.Ask, ids []lockkey.ID) error {
			return do(ctx, ask, rememberedKey{key, ids})
		})
	}
	return f.aboutLedger(u, cmd, func(ctx context.Context, ask ledger.Ask) error {
		facts, err := factsMatching(ctx, ask, key)
		if err != nil {
			return err
		}
		var keys []rememberedKey
		for _, fact := range facts.List {
			i := slices.IndexFunc(keys, func(k rememberedKey) bool { return k.key == fact.Last.Key && k.ids[0].Pair == fact.Last.ID.Pair })
			if i < 0 {
				i, keys = len(keys), append(keys, rememberedKey{key: fact.Last.Key})
			}
			keys[i].ids = append(keys[i].ids, fact.Last.ID)
		}
		slices.SortFunc(keys, func(a, b rememberedKey) int { return strings.Compare(a.key, b.key) })
		for _, k := range keys {
			if err := do(ctx, ask, k); err != nil {
				return err
			}
		}
		if len(keys) == 0 {
			u.log.Warn("no key that is remembered matches "+printable(key), "event", "failed")
			return &silentExit{exitFree}
		}
		return nil
	})
}

// pauseIn is the pause among facts of one key, or the zero one.
func pauseIn(facts ledger.Facts) (pause ledger.Pause) {
	for _, fact := range facts.List {
		if fact.Pause.Until.After(pause.Until) {
			pause = fact.Pause
		}
	}
	return pause
}

// pausedText says what holds from now on, what held before, and who is not touched by
// it.
func pausedText(key string, before ledger.Pause, facts ledger.Facts) string {
	text := printable(key) + ": "
	var runs []string
	for _, fact := range facts.List {
		if fact.Last.Outcome == ledger.Running {
			runs = append(runs, visible.Text(fact.Last.Host)+" runs on since "+ledger.Clock(fact.Last.Started, facts.Now))
		}
	}
	text += "no start " + visible.Text(pauseIn(facts).String())
	if before.Paused() {
		text += "; replaces the pause " + visible.Text(before.String())
	}
	if !slices.ContainsFunc(facts.List, func(fact ledger.Fact) bool { return !fact.Last.Started.IsZero() || !fact.Before.Started.IsZero() }) {
		text += "; no run of it is remembered"
	}
	if len(runs) > 0 {
		text += "; " + strings.Join(runs, ", ")
	}
	return text
}

func newResumeCmd(u *ui, stdout io.Writer) *cobra.Command {
	f := newLookFlags()
	cmd := &cobra.Command{
		Use:        "resume KEY|PATTERN [flags]",
		SuggestFor: []string{"unpause"},
		Short:      "End a pause",
		Long: `End the pause of a key, or of all keys that match a pattern, as for pglead ls.
Those who wait for it start within some seconds.`,
		Example: `  pglead resume nightly
  pglead resume 'import/*'`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.eachKey(u, cmd, args[0], func(ctx context.Context, ask ledger.Ask, k rememberedKey) error {
				before, err := k.facts(ctx, ask)
				if err != nil {
					return err
				}
				was, err := ledger.ResumeKey(ctx, ask, k.ids[0])
				if err != nil {
					return err
				}
				text := ": was not paused"
				switch pause := pauseIn(before); {
				case was && pause.Paused():
					text = ": may start again; was paused " + visible.Text(pause.String())
				case was: // and that was over
					text = ": may start again"
				case isPattern(args[0]):
					return nil
				}
				_, err = fmt.Fprintln(stdout, printable(k.key)+text)
				return err
			})
		},
	}
	f.serverFlags(cmd)
	f.keyFlags(cmd)
	return cmd
}
