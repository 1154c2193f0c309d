package cmd

import (
	"context"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
	"github.com/pglead/pglead/runner/visible"
)

type lsFlags struct {
	lookFlags
	all, watch bool
}

func newLsCmd(u *ui) *cobra.Command {
	f := lsFlags{lookFlags: lookFlags{options: newOptions(u)}}
	f.output = choose("table", "wide", "json", "prometheus")
	cmd := &cobra.Command{
		Use:        "ls [PATTERN...] [flags]",
		SuggestFor: []string{"list", "locks", "status", "show"},
		Short:      "List every lock: key, holder, since when, waiters",
		Long: `List every lock of the database: key, holder, since when, waiters. With
patterns, list only the locks whose key matches one: * stands for any
characters, ? for one; \* and \? for these themselves, so 'really\?' is the
key really?.

Locks that other programs hold are shown by their number; pglead key
--key-scheme all KEY prints the numbers of a key. What this role may not see is
marked, with the grant that would show it.`,
		Example: `  pglead ls --watch
  pglead ls 'import/*'
  cd /var/lib/prometheus/node-exporter &&
    pglead ls -o prometheus >pglead.new && mv pglead.new pglead.prom`,
		RunE: f.ls,
	}
	flags := cmd.Flags()
	f.register(cmd, "output")
	flags.Lookup("output").Usage = "in this `FORMAT`: table, wide (with scheme, number, user, role, client and note), json " +
		"or prometheus (for node_exporter's textfile collector)"
	f.serverFlags(cmd)
	flags.BoolVar(&f.all, "all-databases", false, "list the locks of every database of the server")
	flags.BoolVar(&f.watch, "watch", false, "list them again every 2s")
	return cmd
}

const watchInterval = 2 * time.Second

func (f *lsFlags) ls(cmd *cobra.Command, patterns []string) error {
	screen := f.watch && isTerminal(os.Stdout) && overwrites()
	show := func(text string) error {
		if screen {
			// It overwrites the previous text: cursor home, clear each line to its end, then clear
			// what is below.
			text = "\x1b[H" + strings.ReplaceAll(text, "\n", eraseRest+"\n") + "\x1b[J"
		}
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	if err := f.locate(cmd); err != nil {
		return err
	}
	return untilSignal(func(ctx context.Context) error {
		for connected := false; ; {
			err := f.withClient(ctx, session.OpenClient, func(ctx context.Context, client *session.Client) error {
				connected = true
				return f.follow(ctx, client, patterns, show)
			})
			if f.watch && connected && ctx.Err() != nil {
				err = nil // a signal is how it ends, also during a look or an outage
			}
			if err == nil && screen { // overwrite the ^C that the terminal shows
				_, err = io.WriteString(cmd.OutOrStdout(), "\r"+eraseRest)
			}
			if !screen || !session.Passing(err) {
				return err
			}
			// Somebody who watches through an outage wants to see its end.
			if err := show(visible.Text(err.Error()) + "\n"); err != nil {
				return err
			}
			select {
			case <-time.After(watchInterval):
			case <-ctx.Done():
			}
		}
	})
}

// follow shows the locks once or, with --watch, until ctx ends.
func (f *lsFlags) follow(ctx context.Context, client *session.Client, patterns []string, show func(string) error) error {
	for {
		text, err := f.list(ctx, client, patterns)
		if err == nil {
			err = show(text)
		}
		if err != nil || !f.watch {
			return err
		}
		pause, cancel := context.WithTimeout(ctx, watchInterval)
		err = client.AwaitEnd(pause) // until then, or until the connection ends
		cancel()
		if err != nil {
			err = client.Ended(err)
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// list looks once, and returns the text to show.
func (f *lsFlags) list(ctx context.Context, client *session.Client, patterns []string) (string, error) {
	matches, err := matcher(patterns)
	if err != nil {
		return "", err
	}
	views, err := inspect.Views(ctx, client, inspect.Sought{AllDatabases: f.all})
	if err != nil {
		return "", err
	}
	locks := inspect.Locks(views)
	if len(patterns) > 0 {
		locks = slices.DeleteFunc(locks, func(l *inspect.Lock) bool { return l.Key == nil || !matches(*l.Key) })
	}
	locks, err = f.withPauses(ctx, client, locks, func(on session.Connection, most int) (ledger.Facts, error) {
		return ledger.Pauses(ctx, on, patterns, most)
	})
	if err != nil {
		return "", err
	}
	switch f.output.value {
	case "json":
		var text strings.Builder
		err = writeJSON(&text, locks)
		return text.String(), err
	case "prometheus":
		facts, err := factsFor(ctx, client, patterns)
		if err != nil {
			err = f.unlessUnreadable(err, "runs")
		}
		return lockMetrics(inUse(locks)) + rememberedMetrics(facts), err
	}
	text := "no locks in "
	if len(patterns) > 0 {
		text = "no locks of these keys in "
	}
	text += visible.Text(f.target()) + "\n"
	t := table{all: f.all, wide: f.output.value == "wide", role: func() string { return inspect.Role(ctx, client) }}
	if !t.wide {
		t.width = foregroundWidth(os.Stdout)
	}
	if taken := inUse(locks); len(taken) > 0 {
		text = t.text(taken)
	}
	return text + pausesText(pausesOf(locks), t.width), nil
}

// matcher returns a function that says whether a key matches one of the patterns, if there
// are any.
func matcher(patterns []string) (func(key string) bool, error) {
	if len(patterns) == 0 {
		return func(string) bool { return true }, nil
	}
	var expressions []string
	for _, p := range patterns {
		expressions = append(expressions, ledger.ParsePattern(p).Expression())
	}
	matches, err := regexp.Compile("(?s)^(" + strings.Join(expressions, "|") + ")$")
	if err != nil { // it is not UTF-8
		return nil, usagef("", "the pattern can't be read: %w", err)
	}
	return matches.MatchString, nil
}

// inUse are the locks that somebody holds or waits for.
func inUse(locks []*inspect.Lock) []*inspect.Lock {
	return slices.DeleteFunc(slices.Clone(locks), func(l *inspect.Lock) bool { return len(l.Holders)+len(l.Waiters) == 0 })
}
