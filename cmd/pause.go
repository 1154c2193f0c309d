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
		Use:   "pause KEY [flags]",
		Short: "Let nobody start until a time, or until resume",
		Long: `Let no pglead start a command under the key, for a length of time or until pglead
resume. What runs, runs on: pglead stepdown ends it. It is the ledger that keeps
a pause, so that pgleads without one start all the same.`,
		Example: `  pglead pause nightly --for 2h --note 'disk swap'
  pglead resume nightly`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("for") && length.value < time.Second:
				return usagef("--for %s is too short: at least 1s", &length)
			case !utf8.ValidString(f.note):
				return usagef("--note is not UTF-8")
			}
			return f.aboutKey(u, cmd, args[0], func(ctx context.Context, ask ledger.Ask, ids []lockkey.ID) error {
				wish := ledger.Wish{For: length.value, By: f.description("").User, Note: f.note}
				if err := ledger.PauseKey(ctx, ask, args[0], ids[0], wish); err != nil {
					return err
				}
				facts, err := ledger.FactsOf(ctx, ask, args[0], ids)
				if err != nil {
					return err
				}
				_, err = io.WriteString(stdout, pausedText(args[0], facts)+"\n")
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

// pausedText says what holds from now on, and who is not touched by it.
func pausedText(key string, facts ledger.Facts) string {
	text := printable(key) + ": "
	var runs []string
	var pause ledger.Pause
	for _, fact := range facts.List {
		if fact.Pause.Until.After(pause.Until) {
			pause = fact.Pause
		}
		if fact.Last.Outcome == ledger.Running {
			runs = append(runs, visible.Text(fact.Last.Host)+" runs on since "+ledger.Clock(fact.Last.Started, facts.Now))
		}
	}
	text += "no start " + visible.Text(pause.String())
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
		Use:     "resume KEY [flags]",
		Short:   "End a pause",
		Long:    `End the pause of a key. Those who wait for it start within some seconds.`,
		Example: `  pglead resume nightly`,
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.aboutKey(u, cmd, args[0], func(ctx context.Context, ask ledger.Ask, ids []lockkey.ID) error {
				was, err := ledger.ResumeKey(ctx, ask, ids[0])
				if err != nil {
					return err
				}
				if !was {
					_, err = fmt.Fprintf(stdout, "%s: was not paused\n", printable(args[0]))
					return err
				}
				_, err = fmt.Fprintf(stdout, "%s: may start again\n", printable(args[0]))
				return err
			})
		},
	}
	f.serverFlags(cmd)
	f.keyFlags(cmd)
	return cmd
}
