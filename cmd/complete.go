package cmd

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/ledger"
	"github.com/pglead/pglead/runner/session"
)

// completionTimeout is how long somebody who pressed Tab waits for a database that
// doesn't answer.
const completionTimeout = time.Second

// addCompletions tells the shell what each command accepts where on its command line.
func addCompletions(root *cobra.Command) {
	words := map[string][]string{
		"wait": {"forever"},
		"dsn":  {embedded},
	}
	for _, s := range lockkey.Schemes() {
		words["key-scheme"] = append(words["key-scheme"], s.Name+"\t"+s.About)
	}
	for _, cmd := range root.Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			complete := cobra.FixedCompletions(words[f.Name], cobra.ShellCompDirectiveNoFileComp)
			switch {
			case f.Name == "arg-file":
				return
			case f.Name == "key" && cmd.Name() != "each": // its keys are templates
				complete = keysInUse
			}
			if c, ok := f.Value.(*choice); ok {
				complete = cobra.FixedCompletions(c.words, cobra.ShellCompDirectiveNoFileComp)
			}
			_, f.Usage = pflag.UnquoteUsage(f)
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete) // the flag exists
		})
		switch cmd.Name() {
		case "run", "lead", "each": // any file may be the command
		case "ledger": // has ValidArgs
		case "who", "stepdown", "ls", "history", "check", "pause", "resume":
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 && cmd.Name() != "ls" {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return keysInUse(cmd, args, toComplete)
			}
		default:
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
}

// keysInUse offers the keys that somebody holds or waits for, as keys of the command's
// --key-scheme. It says nothing about errors: the text would end up in the line that the
// user types.
func keysInUse(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	flags := cmd.Flags()
	if err := fromEnvironment(flags); err != nil {
		return nil, nothing
	}
	scheme, _ := flags.GetString("key-scheme")
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	client, err := openAside(ctx, cmd, "pglead completion", completionTimeout)
	if err != nil {
		return nil, nothing
	}
	defer client.Close()
	views, err := inspect.Views(ctx, client, inspect.Sought{})
	if err != nil {
		return nil, nothing
	}
	keys := keysRemembered(ctx, client, cmd.Name(), toComplete)
	for _, l := range inspect.Locks(views) {
		if l.Key != nil && (scheme == "" || l.Scheme == scheme) && strings.HasPrefix(*l.Key, toComplete) && unquoted(*l.Key) && !slices.Contains(keys, *l.Key) {
			keys = append(keys, *l.Key)
		}
	}
	return keys, nothing
}

// keysRemembered are the ledger's keys, for commands that work on these.
func keysRemembered(ctx context.Context, client *session.Client, command, prefix string) []string {
	const most = 100
	if !isIn(toRemember, command) {
		return nil
	}
	on, err := grantedLedger(ctx, client)
	if err != nil || on == nil {
		return nil
	}
	keys, err := ledger.Keys(ctx, on, prefix, most)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(keys, func(key string) bool { return !unquoted(key) })
}

// unquoted says whether no shell treats a key specially. Another session wrote the key, and
// what completion offers becomes part of a command line.
func unquoted(key string) bool {
	return !strings.HasPrefix(key, "-") && !strings.HasPrefix(key, "=") && !strings.HasPrefix(key, "%") &&
		!strings.ContainsFunc(key, func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:@%+,=", r)
		})
}
