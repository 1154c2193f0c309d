package cmd

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglead/pglead/lockkey"
	"github.com/pglead/pglead/runner/child"
	"github.com/pglead/pglead/runner/inspect"
	"github.com/pglead/pglead/runner/lock"
)

// unknownCommand is the error for a word that is no command.
func unknownCommand(root *cobra.Command, word string) error {
	var names []string
	lower := strings.ToLower(word)
	for _, cmd := range root.Commands() {
		if slices.Contains(cmd.SuggestFor, lower) { // before words of a similar spelling
			names = []string{cmd.Name()}
			break
		}
		if strings.HasPrefix(cmd.Name(), lower) || nearest(lower, []string{cmd.Name()}) != "" {
			names = append(names, cmd.Name())
		}
	}
	return usagef(didYouMean(strings.Join(names, " or "), "see pglead --help"), "unknown command %q", word)
}

// didYouMean is a hint: what may have been meant, if anything, and where to look.
func didYouMean(meant, look string) string {
	if meant == "" {
		return look
	}
	return "did you mean " + meant + "? " + strings.ToUpper(look[:1]) + look[1:]
}

// refuseTopics makes pglead help refuse words that are no commands. cobra would show the
// first page.
func refuseTopics(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, words []string) error {
		if found, _, _ := root.Find(words); found == root && len(words) > 0 {
			return unknownCommand(root, words[0])
		}
		return nil
	}
}

// refuseShells makes pglead completion refuse words that are no shells. cobra would show its
// page, and succeed.
func refuseShells(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	var shells []string
	for _, shell := range completion.Commands() {
		shells = append(shells, shell.Name())
		shell.Args = noArguments
	}
	slices.Sort(shells)
	completion.RunE = func(_ *cobra.Command, words []string) error {
		hint := "one of " + strings.Join(shells, ", ") + "; see pglead completion --help"
		if len(words) == 0 {
			return usagef(hint, "the shell to complete for is missing")
		}
		return usagef(didYouMean(nearest(words[0], shells), hint), "unknown shell %q", words[0])
	}
	completion.Args = cobra.ArbitraryArgs
}

func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasParent():
		return unknownCommand(cmd, args[0])
	}
	return usagef("see "+cmd.CommandPath()+" --help", "%s takes no argument: %s", cmd.CommandPath(), printable(args[0]))
}

// flagMistake suggests what was meant by a flag that can't be read.
func flagMistake(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); !cmd.HasParent() && len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	if !cmd.HasParent() {
		return misplacedFlag(err)
	}
	hint := "see " + cmd.CommandPath() + " --help"
	var unknown *pflag.NotExistError
	var value *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			name, _, _ = strings.Cut(letters, "=") // consul's flags have one dash
		}
		meant := meantFlag(cmd.Flags(), name)
		switch {
		case hintForOthers(name) != "" && about(namesIn(toRun), cmd):
			hint = hintForOthers(name)
		case meant != "":
			hint = didYouMean("--"+meant, hint)
		case slices.Contains([]string{"k", "key", "keys"}, name) && regexp.MustCompile(`\bKEY\b`).MatchString(cmd.Use):
			hint = "the key is an argument: pglead " + cmd.Name() + " KEY"
		case flagOfRun(name):
			hint = "pglead run has this flag, pglead " + cmd.Name() + " does not; see " + cmd.CommandPath() + " --help"
		}
	case errors.As(err, &value):
		f := value.GetFlag()
		err = badValue("--"+f.Name, f, value.GetValue(), value.Unwrap())
		word, _, _ := strings.Cut(f.Shorthand+value.GetValue(), "=")
		if f.Shorthand == "t" && (word == "timeout" || word == "try") && cmd.Flags().Lookup("wait") != nil {
			hint = "did you mean --wait, as consul lock's -" + word + "?"
		}
	}
	return usagef(hint, "%w", err)
}

// hintForOthers is a hint for a flag that flock or consul lock has.
func hintForOthers(name string) string {
	switch name {
	case "n":
		return "as flock -n: without --wait the lock is tried once; as consul lock -n: --slots"
	case "nb", "nonblock":
		return "without --wait the lock is tried once, as by flock -n"
	case "x", "e", "exclusive":
		return "the lock is exclusive, unless there is --shared"
	case "c", "command", "shell":
		return "for a shell's syntax: -- sh -c 'COMMAND LINE'"
	case "ttl":
		return "did you mean --lease?"
	case "child-exit-code", "pass-stdin":
		return "leave it out: the exit status and standard input are the command's own"
	case "monitor-retry":
		return "leave it out: a command whose lock is lost is killed"
	}
	return ""
}

// misplacedFlag is the error for a flag that comes before pglead's command, or without a command.
func misplacedFlag(err error) error {
	hint := "see pglead --help"
	var unknown *pflag.NotExistError
	switch {
	case !errors.As(err, &unknown):
	case slices.Contains([]string{"V", "v"}, unknown.GetSpecifiedShortnames()):
		hint = "pglead --version prints the version; other flags follow the command, as in: pglead run -v"
	case flagOfRun(cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName())):
		hint = "flags follow the command, as in: pglead run --key KEY -- COMMAND"
	}
	return usagef(hint, "%w", err)
}

// flagOfRun says whether pglead run has a flag of this name.
func flagOfRun(name string) bool {
	flags := newRunCmd(nil).Flags()
	return flags.Lookup(name) != nil || len(name) == 1 && flags.ShorthandLookup(name) != nil
}

// badValue says what is wrong with a flag's value, whatever its source is.
func badValue(name string, f *pflag.Flag, value string, cause error) error {
	switch {
	case value == "--":
		return noValue(name)
	case f.Value.Type() == "bool":
		return fmt.Errorf("%s: %q is neither true nor false", name, value)
	case f.Value.Type() == "int":
		return fmt.Errorf("%s: %q is not a whole number", name, value)
	}
	return fmt.Errorf("%s: %w", name, cause)
}

// noValue is the error for a flag that has taken the following -- as its value.
func noValue(name string) error { return fmt.Errorf("%s: its value is missing before the --", name) }

// checkDashes finds flags that have taken a -- as their value.
func checkDashes(flags *pflag.FlagSet) (err error) {
	flags.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if slices.Contains(values, "--") && err == nil {
			err = usagef("", "%w", noValue(sourceOf(f)))
		}
	})
	return err
}

// meantFlag is the flag with nearly this name, or nothing.
func meantFlag(flags *pflag.FlagSet, name string) (meant string) {
	if name == "k" && flags.Lookup("key") != nil {
		return "key"
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return nearest(name, names)
}

// nearest is the name that differs least from the given one, or nothing if all names differ
// by too many letters.
func nearest(name string, names []string) (best string) {
	least := min(2, len(name)/3) + 1
	for _, candidate := range names {
		if d := distance(name, candidate); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// distance is how many letters have to be added, dropped, replaced, or swapped with their
// neighbours.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(last[j+1]+1, next[j]+1, last[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, last = last, next
	}
	return last[len(b)]
}

// warnOfVariables warns of variables whose name is nearly a flag's. Others may belong to
// anybody.
func warnOfVariables(u *ui, called *cobra.Command) {
	var known []string
	for _, name := range ownVariables(called) {
		known = append(known, strings.TrimPrefix(name, envPrefix))
	}
	for _, e := range os.Environ() {
		name, value, _ := strings.Cut(e, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		if !ours || rest == "" || value == "" || slices.Contains(known, rest) {
			continue
		}
		if meant := nearest(rest, known); meant != "" {
			u.remark("unknown variable "+printable(name), "did you mean "+envPrefix+meant+"?")
		}
	}
}

// lookupHint helps if a command is not found: its text may need a shell, or PATH may be as short
// as cron's.
func lookupHint(e *child.LookupError) string {
	builtins := []string{
		"cd", "export", "source", ".", "set", "unset", "ulimit", "umask", "alias", "exec", "eval", "trap", "wait",
		"if", "for", "while", "until", "case", "{", "(",
	}
	path := os.Getenv("PATH")
	info, err := os.Stat(e.Name)
	switch {
	case strings.ContainsAny(e.Name, " \t\n&|;<>()$`*?\"'") || slices.Contains(builtins, e.Name):
		return "for a shell's syntax: -- sh -c 'COMMAND LINE'"
	case e.NotFound && regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`).MatchString(e.Name):
		return "to set a variable: -- env NAME=VALUE COMMAND"
	case !e.NotFound && err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 == 0: // nobody may execute it
		return "chmod +x " + e.Name + " makes it a program"
	case e.NotFound && !strings.Contains(e.Name, "/") && path != "":
		return "it is not in PATH=" + path
	}
	return ""
}

// ownHolder says whether the pglead that this one runs under holds a lock.
func ownHolder(held *lock.ConflictError) bool {
	backend := os.Getenv("PGLEAD_BACKEND_PID")
	ids := strings.Split(os.Getenv("PGLEAD_LOCK_ID"), "\n")
	return slices.ContainsFunc(held.Holders, func(h inspect.View) bool {
		return strconv.FormatUint(uint64(h.Backend), 10) == backend && slices.Contains(ids, h.ID.String())
	})
}

// warnOfOuter warns before a wait that this pglead may wait for the one that it runs under.
// Only the server knows whether that one has the lock in the same database.
func warnOfOuter(u *ui, claim lock.Claim) {
	ids := strings.Split(os.Getenv("PGLEAD_LOCK_ID"), "\n")
	if claim.Gate == nil && !claim.Shared && slices.ContainsFunc(claim.IDs, func(id lockkey.ID) bool { return slices.Contains(ids, id.String()) }) {
		const text = "the pglead under which this one runs has a lock of the same number: " +
			"if both use the same database, each waits for the other"
		u.log.Warn(text, "event", "environment")
	}
}

// refuseHelp puts an error into refused if the help is asked for beside a command to run. psql's -h
// names the host, and a script would take the help's status 0 for the job's success.
func refuseHelp(root *cobra.Command, refused *error) {
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, words []string) {
		help(cmd, words)
		if isIn(toRun, cmd.Name()) && cmd.Flags().NArg() > 0 {
			*refused = usagef("--dsn host=HOST names the host", "-h and --help show the help: nothing was run")
		}
	})
}

// pageWidth is the width of help without a terminal, and on a terminal that gives none.
const pageWidth = 80

// wrapHelp makes the flags in --help fit into the terminal.
func wrapHelp(root *cobra.Command) {
	plain := root.UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		width := cmp.Or(foregroundWidth(os.Stdout), pageWidth)
		out := cmd.OutOrStderr()
		var b bytes.Buffer
		cmd.SetOut(&b)
		err := plain(cmd)
		cmd.SetOut(out)
		flags := cmd.LocalFlags()
		text := strings.Replace(b.String(), strings.TrimSpace(flags.FlagUsages()), strings.TrimSpace(flags.FlagUsagesWrapped(width)), 1)
		if _, failed := io.WriteString(out, text); err == nil {
			err = failed
		}
		return err
	})
}
